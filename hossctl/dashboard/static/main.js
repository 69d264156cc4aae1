// Puts the page together: the stream fills the model, the model's news go to the panels.

import { ask, identify, loggedIn, logIn, logOut, unlocked, viewer } from "./api.js";
import { Chart } from "./chart.js";
import { announce, find, make, say } from "./dom.js";
import { clock, count, duration, percent } from "./format.js";
import { JobPage, NodePage, NoPage, WorkerPage } from "./details.js";
import { FragmentationPage } from "./fragmentation.js";
import { HeatMap } from "./heatmap.js";
import { lists } from "./lists.js";
import { events, PolicyPage } from "./log.js";
import { emptyModel, take } from "./model.js";
import * as panels from "./panels.js";
import { address, go, here, route } from "./router.js";
import { Story } from "./story.js";
import { Stream } from "./stream.js";
import { TimelinePage } from "./timeline.js";

const ASK_AFTER_MS = 120; // the pointer rests on a node: then its exact numbers are worth a question
const NAMES = { cpu: "CPU", memory: "Memory", pods: "Pods", cards: "Cards" };
const NOTHING = 255;
const OVER = 201;
const MINUTES_MS = 300_000;
const HOUR_MS = 3_600_000;
const AGAIN_MS = 2000; // a page asks again this often

const model = emptyModel();
const story = new Story();
const heat = new HeatMap(find("heat"), { focus: (row) => announce(tellNode(row)), choose: (row) => row !== null && go(address(["nodes", model.nodes.names[row]])) });
const rates = new Chart(find("rate-chart"), find("rate-legend"), [
  { name: "bound", of: (point) => point[1][0] },
  { name: "submitted", of: (point) => point[1][1] },
  { name: "refused", of: (point) => point[1][2] },
], { log: false, write: count, spanMs: HOUR_MS, most: 3 });
const latencies = new Chart(find("lat-chart"), find("lat-legend"), [
  { name: "in queue", of: (point) => point[3][0] },
  { name: "deciding", of: (point) => point[3][1] },
  { name: "committing", of: (point) => point[3][2] },
], { log: true, write: duration, spanMs: HOUR_MS });

// --- the connection ---

let lostSince = 0;
let stream = null;

/** Look, if this viewer may, else ask for a token. */
function begin() {
  document.body.dataset.scope = viewer.tenant ? "tenant" : "platform";
  showLock();
  stream?.close();
  move();
  if (viewer.login) return askToken();
  if (stream) stream.open();
  else stream = new Stream("/api/stream", listener);
}

function askToken() {
  link("away", "Logged out");
  notice("Log in to look: by the link that `hoss dashboard` prints, or with a token of `hoss token create --role view`.");
  openForm(true);
}

const listener = {
  look(message) {
    lostSince = 0;
    link("live", "Live");
    notice("");
    show(take(model, message));
  },
  away({ why }) {
    link("away", "Reconnecting");
    notice(`${why}.${shownSince()}`);
  },
  lost(retryMs) {
    lostSince = lostSince || Date.now();
    link("lost", "Disconnected");
    notice(`The dashboard has not answered since ${clock(lostSince)}.${shownSince()} Trying again in ${Math.round(retryMs / 1000)} s.`);
    // It may have started anew, and know no session.
    identify().then((why) => why || !viewer.login || begin());
  },
  ended: () => identify().then(begin),
};

const shownSince = () => (model.at ? ` What is shown was so at ${clock(model.at)}.` : "");

function link(state, text) {
  document.body.dataset.link = state;
  say(find("link-text"), text);
}

function notice(text) {
  say(find("notice"), text);
  find("notice").hidden = !text;
}

// --- what is new ---

function show({ fresh, rows }) {
  const { sections } = model;
  const any = (...names) => names.some((name) => fresh.has(name));
  if (any("platform")) about(sections.platform);
  if (any("problems")) problems(sections.problems);
  if (any("queues", "workers", "conflicts", "capacity", "points")) panels.showFigures(model);
  if (any("queues")) panels.showQueues(sections);
  if (any("pending", "queues")) panels.showPending(sections, (name) => story.look(name));
  if (sections.workers && any("workers")) showWorkers();
  if (sections.workers && any("conflicts", "workers")) panels.showConflicts(sections);
  showCurves();
  if (rows === "all") showNodes();
  heat.show(model.nodes, rows);
  if (rows === "all" || rows.includes(heat.focused)) tellNode(heat.focused);
}

function about(platform) {
  if (viewer.tenant) return say(find("about"), `HOSS ${platform.version}; pods of tenant ${viewer.tenant}.`);
  const steering = `${platform.overlap}, ${platform.workersAtOnce ? `${platform.workersAtOnce} workers at once` : "all workers"}`;
  say(find("about"), `HOSS ${platform.version} at ${platform.address}, term ${platform.term}, up since ${clock(platform.startedMs)}; ${count(platform.jobs)} jobs; placing ${steering}.`);
}

function problems(texts) {
  find("problems").hidden = !texts.length;
  find("problems").replaceChildren(...texts.map((text) => make("li", {}, text)));
}

// --- the curves: of five minutes, or with ?span=hour of an hour ---

let hour = null; // its points; null: not asked for yet

function showCurves() {
  const span = here().query.get("span") === "hour" ? HOUR_MS : MINUTES_MS;
  for (const button of find("span").children) button.setAttribute("aria-pressed", String(Number(button.value) === span));
  if (span === HOUR_MS && hour === null) {
    hour = [];
    ask("/api/history").then((said) => {
      hour = said.points ?? null;
      showCurves();
    });
  }
  const last = hour?.length ? hour[hour.length - 1][0] : 0;
  if (span === HOUR_MS) hour?.push(...model.points.filter((point) => point[0] > last));
  const points = (span === HOUR_MS ? hour ?? [] : model.points).filter((point) => point[0] > model.at - span);
  for (const chart of [rates, latencies]) chart.show(points, model.at);
}

find("span").replaceChildren(...[[MINUTES_MS, "5 min", ""], [HOUR_MS, "1 hour", "hour"]].map(([span, title, value]) =>
  make("button", { type: "button", value: String(span), onclick: () => {
    hour = null;
    go(address([], { span: value }), { replace: true });
    showCurves();
  } }, title),
));

// --- the other pages ---

const pages = {
  ...lists(() => model.sections),
  events,
  timeline: new TimelinePage(),
  fragmentation: new FragmentationPage(),
  policy: new PolicyPage(),
  job: new JobPage(),
  node: new NodePage(),
  worker: new WorkerPage(),
  missing: new NoPage("There is no such page", () => `Nothing is at ${location.pathname}.`),
  closed: new NoPage("Not shown to a tenant", () => `This page is about the whole platform, and you may see tenant ${viewer.tenant} alone.`),
};
const LISTED_BY = { job: "jobs", node: "nodes", worker: "workers" };
let again = 0;

function move() {
  clearTimeout(again);
  let { page, names, query } = here();
  const listedBy = LISTED_BY[page] ?? page;
  if (viewer.tenant && find("pages").querySelector(`[data-page=${listedBy}]`)?.dataset.of === "platform") page = "closed";
  for (const link of find("pages").children) {
    if (link.dataset.page === listedBy) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - link.parentElement.clientWidth / 3;
    } else link.removeAttribute("aria-current");
  }
  find("overview").hidden = page !== "overview" || viewer.login; // to log in comes first
  find("page").hidden = page === "overview" || viewer.login;
  const listed = find("pages").querySelector("[aria-current]")?.textContent ?? "No such page";
  document.title = page === "overview" ? "HOSS" : `${names.join("/") || listed} · HOSS`;
  story.close();
  if (viewer.login) return find("page").replaceChildren();
  if (page === "overview") {
    find("page").replaceChildren();
    heat.layOut();
    return showCurves();
  }
  repeat(pages[page], pages[page].open(find("page"), names));
  const [namespace, name] = [query.get("namespace"), query.get("name")];
  if (page === "pods" && name) story.look(namespace ? `${namespace}/${name}` : name);
}

/** A page asks again while it is shown and somebody looks. */
async function repeat(page, asked) {
  const shown = location.href;
  await asked;
  if (location.href !== shown) return;
  again = setTimeout(() => repeat(page, document.hidden || document.body.dataset.link !== "live" ? null : page.refresh()), AGAIN_MS);
}

// --- nodes ---

function showNodes() {
  const { names, resources, values, stride } = model.nodes;
  find("nodes").classList.toggle("is-empty", !names.length);
  say(find("nodes-count"), count(names.length));
  const offered = resources.filter((_, column) => names.some((_, row) => values[row * stride + column] !== NOTHING));
  const tabs = offered.map((resource) => {
    const button = make("button", { type: "button" }, NAMES[resource]);
    button.setAttribute("aria-pressed", String(resources.indexOf(resource) === heat.column));
    button.onclick = () => {
      heat.colourBy(resources.indexOf(resource));
      for (const other of find("resources").children) other.setAttribute("aria-pressed", String(other === button));
    };
    return button;
  });
  find("resources").replaceChildren(...tabs);
}

let asking = 0;

/** Show what is known of a node; the text of it. */
function tellNode(row) {
  clearTimeout(asking);
  if (row === null || row >= model.nodes.names.length) {
    say(find("node-now"), "Point at a node, or move with the arrow keys.");
    return "";
  }
  const { names, resources, values, stride } = model.nodes;
  const shares = resources.map((resource, column) => [NAMES[resource], values[row * stride + column]])
    .filter(([, value]) => value !== NOTHING)
    .map(([name, value]) => `${name} ${value === OVER ? "over 100 %" : percent(value / 200)}`);
  find("node-now").replaceChildren(make("b", {}, names[row]), ` ${shares.join(" · ")}`);
  asking = setTimeout(() => askNode(row), ASK_AFTER_MS);
  return find("node-now").textContent;
}

async function askNode() {
  const row = heat.focused;
  if (row === null) return;
  const name = model.nodes.names[row];
  const node = await ask(`/api/nodes/${encodeURIComponent(name)}`);
  if (row !== heat.focused || node.error) return;
  const amounts = node.resources.map(({ name, requested, allocatable }) => `${NAMES[name]} ${requested} of ${allocatable}`);
  const states = ["cordoned", "quarantined", "shrunk"].filter((state) => node[state]);
  const parts = [make("b", {}, name), ` ${[...amounts, ...states].join(" · ")}`];
  if (unlocked()) {
    const label = node.cordoned ? "Uncordon" : "Cordon";
    parts.push(make("button", { type: "button", onclick: () => act(`/api/nodes/${encodeURIComponent(name)}`, { unschedulable: !node.cordoned }) }, label));
  }
  find("node-now").replaceChildren(...parts);
}

// --- actions ---

function showWorkers() {
  panels.showWorkers(model.sections, unlocked() ? (name, state) => act(`/api/workers/${encodeURIComponent(name)}`, { state }) : null);
}

async function act(path, body) {
  const { error } = await ask(path, body);
  notice(error ? `That was not done: ${error}` : "");
  if (!error && heat.focused !== null) askNode();
}

find("unlock").addEventListener("click", async () => {
  if (!loggedIn()) return openForm(find("token-form").hidden);
  await logOut();
  begin();
});

function openForm(open) {
  find("token-form").hidden = !open;
  find("unlock").setAttribute("aria-expanded", String(open));
  if (open) find("token").focus();
}

find("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const why = await logIn(find("token").value.trim());
  say(find("token-said"), why);
  if (why) return;
  find("token").value = "";
  openForm(false);
  notice("");
  begin();
});

function showLock() {
  say(find("unlock"), loggedIn() ? "Log out" : "Log in");
  find("unlock").title = loggedIn() ? `${viewer.caller}, role ${viewer.role}` : "";
  if (model.sections.workers) showWorkers();
  tellNode(heat.focused);
}

// --- finding, theme, keys ---

find("find").addEventListener("submit", (event) => {
  event.preventDefault();
  story.look(find("find-name").value);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input")) return;
  event.preventDefault();
  find("find-name").focus();
});

const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

function themed() {
  say(find("theme"), dark() ? "Light" : "Dark");
  heat.restyle();
  pages.timeline.draw();
}

find("theme").addEventListener("click", () => {
  const chosen = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("hoss-theme", chosen);
  } catch {
    // Storage is forbidden here: the choice holds until the page is left.
  }
  themed();
});
system.addEventListener("change", themed);
themed();

// --- the beginning: a link of `hoss up` or `hoss dashboard` carries a token, which no server sees before this ---

const linked = /^#login=(.+)$/.exec(location.hash);
if (linked) history.replaceState(null, "", location.pathname + location.search);
const why = linked ? await logIn(linked[1]) : "";
const unknown = await identify();
route(move);
if (unknown) viewer.login = false; // the stream says what is wrong, and tries again
begin();
if (why) {
  say(find("token-said"), why);
  if (!viewer.login) notice(`The link did not log in: ${why}`);
}
