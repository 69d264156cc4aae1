// Figures, queues, reasons, workers and conflicts: what one section of a look says, each in its place.

import { caption, find, keep, make, say } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { address } from "./router.js";

const QUEUES = [
  ["QUEUED", "In the active queue"],
  ["BACKOFF", "In backoff"],
  ["UNSCHEDULABLE", "Unschedulable for now"],
  ["SCHEDULING", "With a worker"],
  ["BOUND", "Bound"],
  ["FAILED", "Given up"],
];
const GONE = ["Lost", "Left"];
const MOST_IN_MATRIX = 12;
const MOST_TINT = 40; // per cent of the accent, on which the text can still be read in both themes
const NOBODY = "(nobody)"; // the node itself had changed, or room was promised elsewhere

export function empty(id, is) {
  find(id).classList.toggle("is-empty", is);
}

export function showFigures({ sections, points }) {
  // Of a tenant's viewer, queues are all there is.
  const { queues, workers = [], conflicts = {}, capacity = [] } = sections;
  const last = points[points.length - 1];
  say(find("f-rate"), last ? count(last[1][0]) : "–");
  say(find("f-bound"), count(queues.BOUND ?? 0));
  say(find("f-waiting"), count(waiting(queues)));
  say(find("f-queued"), duration(points.findLast((point) => point[3][0] !== null)?.[3][0]));
  say(find("f-conflicts"), conflicts.proposed ? percent(conflicts.refused / conflicts.proposed) : "–");
  const present = workers.filter((worker) => !GONE.includes(worker.state));
  const ready = present.filter((worker) => worker.state === "Ready").length;
  figure("f-workers", String(ready), ` of ${workers.filter((worker) => worker.state !== "Left").length}`);
  const cpu = capacity.find((resource) => resource.name === "cpu");
  say(find("f-cpu"), cpu && cpu.allocatable ? percent(cpu.requested / cpu.allocatable) : "–");
}

function figure(id, text, rest) {
  const element = find(id);
  if (element.textContent !== text + rest) element.replaceChildren(text, make("small", {}, rest));
}

const waiting = (queues) => (queues.QUEUED ?? 0) + (queues.BACKOFF ?? 0) + (queues.UNSCHEDULABLE ?? 0);

export function showQueues({ queues }) {
  const most = Math.max(1, ...QUEUES.map(([phase]) => queues[phase] ?? 0));
  keep(find("queues"), QUEUES, ([phase]) => phase, bar, (item, [phase, name]) => {
    const pods = queues[phase] ?? 0;
    say(item.children[0], name);
    say(item.children[1], count(pods));
    item.children[2].value = pods / most;
  });
}

/** `look(name)`: the example's story is asked for. */
export function showPending({ pending, queues }, look) {
  find("pending").parentElement.classList.toggle("is-empty", !pending.length);
  const all = Math.max(1, waiting(queues));
  keep(find("pending"), pending, (group) => group.reason, bar, (item, group) => {
    const label = item.children[0];
    if (group.example) {
      if (!label.firstElementChild) label.replaceChildren(make("a", { href: "#story", title: "Show a pod of these" }));
      const link = label.firstElementChild;
      say(link, group.reason);
      link.onclick = (event) => {
        event.preventDefault();
        look(group.example);
      };
    } else {
      say(label, group.reason);
    }
    say(item.children[1], count(group.pods));
    item.children[2].value = group.pods / all;
  });
}

function bar() {
  return make("li", {}, make("span", { class: "label" }), make("span", { class: "n" }), make("meter", { min: 0, max: 1, "aria-hidden": "true" }));
}

/** `act(name, state)` cordons, opens and drains; null while that is locked. */
export function showWorkers({ workers }, act) {
  const section = find("workers").closest("section");
  section.classList.toggle("is-empty", !workers.length);
  const lost = workers.filter((worker) => worker.state === "Lost").length;
  say(find("workers-count"), `${workers.length}${lost ? `, ${lost} lost` : ""}`);
  keep(find("workers").tBodies[0], workers, (worker) => worker.name, workerRow, (row, worker) => {
    const [name, state, rate, load, busy, conflicts, bound, actions] = row.children;
    say(name.children[0], worker.name);
    name.children[0].href = address(["workers", worker.name]);
    const labels = Object.entries(worker.labels).map(([key, value]) => `${key}=${value}`).join(", ");
    say(name.children[1], labels);
    name.children[1].title = labels;
    say(state.firstChild, worker.state);
    state.firstChild.dataset.state = worker.state;
    const gone = GONE.includes(worker.state);
    say(rate, gone ? "–" : count(worker.podsPerSecond));
    meter(load, worker.window ? worker.outstanding / worker.window : 0, gone ? "–" : worker.outstanding ? `${count(worker.outstanding)}, ${duration(worker.workMs / 1000)}` : "idle");
    meter(busy, worker.busyShare, gone ? "–" : percent(worker.busyShare));
    meter(conflicts, worker.conflictShare, percent(worker.conflictShare));
    say(bound, count(worker.bound));
    keep(actions, act && !gone ? choices(worker) : [], ([wanted]) => wanted, ([, label]) => make("button", { type: "button" }, label), (button, [wanted, label]) => {
      button.setAttribute("aria-label", `${label} ${worker.name}`);
      button.onclick = () => act(worker.name, wanted);
    });
  });
}

const choices = (worker) =>
  worker.state === "Ready" ? [["Cordoned", "Cordon"], ["Draining", "Drain"]] : [["Ready", "Uncordon"]];

function workerRow() {
  const cell = (...children) => make("td", {}, ...children);
  const gauge = () => cell(make("div", { class: "meter" }, make("meter", { min: 0, max: 1, "aria-hidden": "true" }), make("small")));
  const strained = gauge();
  Object.assign(strained.querySelector("meter"), { low: 0.1, high: 0.3, optimum: 0 });
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, make("a"), make("span", { class: "labels" })),
    cell(make("span", { class: "state" })),
    make("td", { class: "n" }),
    gauge(),
    gauge(),
    strained,
    make("td", { class: "n" }),
    make("td", { class: "act" }),
  );
}

function meter(cell, share, text) {
  const [bar, label] = cell.firstChild.children;
  bar.value = share;
  say(label, text);
}

export function showConflicts({ conflicts, workers }) {
  const table = find("conflicts");
  table.closest("section").classList.toggle("is-empty", !conflicts.pairs.length);
  const sums = new Map(workers.map((worker) => [worker.name, 0]));
  for (const { loser, winner, pods } of conflicts.pairs) {
    for (const name of [loser, winner]) if (name) sums.set(name, (sums.get(name) ?? 0) + pods);
  }
  const names = [...sums].sort((a, b) => b[1] - a[1]).slice(0, MOST_IN_MATRIX).map(([name]) => name).sort();
  const columns = conflicts.pairs.some((pair) => !pair.winner) ? [...names, ""] : names;
  const pairs = new Map(conflicts.pairs.map((pair) => [JSON.stringify([pair.loser, pair.winner]), pair]));
  const most = Math.max(1, ...conflicts.pairs.map((pair) => pair.pods));
  const head = make("tr", {}, make("td", { class: "self" }), ...columns.map((name) => make("th", { scope: "col", title: name || "no other worker" }, name || NOBODY)));
  const rows = names.map((loser) =>
    make("tr", {}, make("th", { scope: "row", title: loser }, loser), ...columns.map((winner) => pairCell(loser, winner, pairs, most))),
  );
  table.replaceChildren(caption("Conflicts: each row was refused by the columns"), make("thead", {}, head), make("tbody", {}, ...rows));
}

function pairCell(loser, winner, pairs, most) {
  const pair = pairs.get(JSON.stringify([loser, winner]));
  if (!pair) return make("td", { class: loser === winner ? "self" : "zero" }, loser === winner ? "" : "0");
  const share = pair.pods / most;
  const why = Object.entries(pair.reasons).map(([reason, pods]) => `${reason} ${count(pods)}`).join(", ");
  const cell = make("td", { title: `${loser} was refused for ${winner || "no other worker"}: ${why}` }, count(pair.pods));
  cell.style.background = `color-mix(in oklab, var(--accent) ${Math.round(12 + share * MOST_TINT)}%, var(--heat-0))`;
  return cell;
}
