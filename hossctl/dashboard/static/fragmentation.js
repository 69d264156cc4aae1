// The page of fragmentation: which of the free room pods can use, by pool, now and within the last hour.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { Detail, list, NAMES, section } from "./details.js";
import { make, say } from "./dom.js";
import { clock, count, duration, percent } from "./format.js";
import { share } from "./lists.js";
import { address, go, here } from "./router.js";
import { heading } from "./table.js";

const HOUR_MS = 3_600_000;
const FILTERS = ["label", "pool", "resource"];
const MISSED = 3; // so many rests without a point make a gap in the curves

const named = (resource) => NAMES[resource] ?? resource;
const poolName = (name) => (name === "-" ? "without the label" : name);
const part = (text, of) => (text === null ? "–" : of === null ? text : share(of, `${text}, ${percent(of)}`));

export class FragmentationPage extends Detail {
  load() {
    const { query } = here();
    return ask(`/api/fragmentation?${new URLSearchParams(FILTERS.map((name) => [name, query.get(name) ?? ""]))}`);
  }

  at(changed) {
    const { query } = here();
    return address(["fragmentation"], { ...Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""])), ...changed });
  }

  /** Heading and form stay while the rest is drawn anew, so that nobody's typing is lost. */
  open(place, names) {
    this.count = make("span", { class: "count" });
    const asked = super.open(place, names);
    place.prepend(heading("Fragmentation ", this.count), this.form(here().query.get("label") ?? ""));
    return asked;
  }

  draw(said) {
    const again = said.measuring === null ? [] : said.measuring ? [`measuring for ${duration(said.measuring)}`] : said.at ? [] : ["measuring …"];
    say(this.count, [...(said.at ? [`measured at ${clock(said.at)} in ${duration(said.took)}`] : []), ...again].join(", "));
    const since = said.at ? ` What is shown was so at ${clock(said.at)}.` : "";
    const parts = said.problem ? [make("p", { class: "faults", role: "alert" }, `Not measured: ${said.problem}.${since}`)] : [];
    if (!said.at) return said.problem ? parts : [make("p", { class: "why" }, "Every pod and reservation is read; with many of them that takes a while.")];
    if (!said.resource) return [...parts, make("p", { class: "why" }, "No node takes pods: there is no room to measure.")];
    [this.room, this.roomLegend, this.nodes, this.nodesLegend] = ["chart", "keys", "chart", "keys"].map((name) => make("div", { class: name }));
    const of = said.pools.length > 1 || said.label ? ` of pool ${poolName(said.pool)}` : "";
    return [
      ...parts,
      this.pools(said),
      section(`${named(said.resource)}${of}: free and usable, within an hour`, this.tabs(said), this.roomLegend, this.room),
      section(`Nodes${of} that could be emptied, within an hour`, this.nodesLegend, this.nodes),
      section(`Stranded${of}`, list([
        ["Resource", (row) => named(row.resource)],
        ["Amount", (row) => row.amount, "n"],
        ["On nodes", (row) => count(row.nodes), "n"],
        ["Where this is full", (row) => named(row.beside)],
      ], said.stranded, "Stranded room", "No free room lies beside a resource that is full.")),
      ...(said.cards ? [section(`Cards${of}`, make("p", { class: "why" }, cards(said.cards)))] : []),
      section("Jobs that wait", list([
        ["Job", (row) => row.name],
        ["Pods", (row) => count(row.pods), "n"],
        ["Fit", (row) => count(row.fitting), "n"],
        ["Of one pod fits", (row) => share(Math.min(row.share, 1))],
        ["On", (row) => row.node || "–"],
        ["Limited by", (row) => (row.limitedBy ? named(row.limitedBy) : "–")],
      ], said.waiting, "Jobs that wait", "No pod waits.")),
    ];
  }

  form(label) {
    const input = make("input", { name: "label", value: label, type: "search", autocomplete: "off", spellcheck: false, maxLength: 317, placeholder: "one pool of all nodes" });
    const form = make("form", { class: "filters wide", role: "search", "aria-label": "Pools" }, make("label", {}, make("span", {}, "Pools by label"), input));
    const choose = (event) => {
      event.preventDefault();
      if (input.value.trim() !== label) go(this.at({ label: input.value.trim(), pool: "" }), { replace: true });
    };
    form.addEventListener("submit", choose);
    form.addEventListener("change", choose);
    return form;
  }

  pools(said) {
    const rows = said.pools.flatMap((pool) => pool.resources.map((resource) => ({ pool, ...resource })));
    const shown = list([
      ["Pool", ({ pool, resource }) => make("a", { href: this.at({ pool: pool.name, resource }) }, `${poolName(pool.name)}, ${named(resource)}`)],
      ["Nodes", ({ pool }) => count(pool.nodes), "n"],
      ["Could be emptied", ({ pool }) => count(pool.emptiable), "n"],
      ["Allocatable", (row) => row.allocatable, "n"],
      ["Free", (row) => part(row.free, row.freeShare)],
      ["Usable of it", (row) => part(row.usable, row.usableShare)],
      ["By waiting pods", (row) => part(row.byWaiting, row.byWaitingShare)],
    ], rows, "Room by pool and resource", "");
    return make("div", {}, shown, ...(said.more ? [make("p", { class: "why" }, `${count(said.more)} smaller pools are left out; hoss fragmentation has them.`)] : []));
  }

  tabs({ resource, resources }) {
    return make("div", { class: "tabs room-tabs", role: "group", "aria-label": "Resource" }, ...resources.map((name) => {
      const button = make("button", { type: "button", onclick: () => go(this.at({ resource: name }), { replace: true }) }, named(name));
      button.setAttribute("aria-pressed", String(name === resource));
      return button;
    }));
  }

  after({ points, at, rest }) {
    if (!this.room?.isConnected) return;
    const options = { gapMs: MISSED * 1000 * Math.max(rest, 60), spanMs: HOUR_MS, log: false };
    const ofAll = (column) => (point) => (point[1] ? point[column] / point[1] : null);
    new Chart(this.room, this.roomLegend, [{ name: "usable", of: ofAll(3) }, { name: "free", of: ofAll(2) }], { ...options, write: percent, most: 1, empty: "Nothing is free." }).show(points, at);
    new Chart(this.nodes, this.nodesLegend, [{ name: "could be emptied", of: (point) => point[4] }], { ...options, write: count, most: 3, empty: "No node could be emptied." }).show(points, at);
  }
}

function cards({ cards, freeMilli, wholeFree, inPieces, freeInPiecesMilli, fragmentsMilli }) {
  const whole = (milli) => `${milli / 1000}`;
  return `${whole(freeMilli)} of ${count(cards)} cards are free: ${count(wholeFree)} whole, and ${whole(freeInPiecesMilli)} in pieces on ${count(inPieces)} cards. ${whole(fragmentsMilli)} are fragments, by FGD's measure for the usual pods.`;
}
