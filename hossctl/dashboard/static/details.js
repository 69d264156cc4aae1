// The pages of one job, one node and one worker.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { make } from "./dom.js";
import { clock, count, duration, percent, when } from "./format.js";
import { labels, nodeStates, podColumns, share, state, waitingColumns } from "./lists.js";
import { address } from "./router.js";
import { heading, link, table } from "./table.js";

export const NAMES = { cpu: "CPU", memory: "Memory", pods: "Pods", cards: "Cards" };
const WORKER_GAP_MS = 25_000;

export const facts = (pairs) => make("dl", { class: "facts" }, ...pairs.map(([name, ...value]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...value))));
export const section = (title, ...parts) => make("section", { class: "part" }, make("h3", {}, title), ...parts);
export const list = (columns, rows, label, empty) => (rows.length ? table(columns, rows, label) : make("p", { class: "why" }, empty));
const without = (column) => podColumns.filter(([title]) => title !== column);

/** A page that asks again, and is drawn anew where the answer differs. */
export class Detail {
  open(place, names) {
    Object.assign(this, { place, names, drawn: "" });
    this.body = make("div", {}, make("p", { class: "why" }, "Reading …"));
    place.replaceChildren(this.body);
    return this.refresh();
  }

  async refresh() {
    const body = this.body;
    const said = await this.load(...this.names);
    const text = JSON.stringify(said);
    if (body !== this.body || !this.place.contains(body) || text === this.drawn) return;
    this.drawn = text;
    const kept = held(body);
    body.replaceChildren(...(said.error ? this.drawError(said.error) : this.draw(said)));
    this.after?.(said);
    kept();
  }

  drawError(error) {
    const why = make("p", { class: "why" }, error);
    if (!this.names.length) return [why];
    return [heading(this.names.join("/"), make("a", { href: `/${this.listed}` }, `All ${this.listed}`)), why];
  }
}

const FOCUSABLE = "a, button, input, summary, [tabindex='0']";

/** What a reader has opened, scrolled to and focused within `body`; to be called once that is drawn anew. */
function held(body) {
  const open = [...body.querySelectorAll("details")].map((details) => details.open);
  const scrolled = [...body.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  const focused = [...body.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  return () => {
    body.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
    body.querySelectorAll(".scroll").forEach((region, i) => { region.scrollLeft = scrolled[i] ?? 0; });
    if (focused >= 0) body.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
  };
}

export class JobPage extends Detail {
  listed = "jobs";

  async load(namespace, name) {
    const job = await ask(`/api${address(["jobs", namespace, name])}`);
    if (job.error) return job;
    const waiting = await ask(`/api/lists${address(["pods"], { namespace, job: name, phase: "Unschedulable" })}`);
    const pods = await ask(`/api/lists${address(["pods"], { namespace, job: name })}`);
    return { job, waiting: waiting.rows ?? [], pods: pods.rows ?? [], more: Boolean(pods.next) };
  }

  draw({ job, waiting, pods, more }) {
    const all = make("a", { href: address(["pods"], { namespace: job.namespace, job: job.name }) }, "All its pods");
    return [
      heading(`Job ${job.namespace}/${job.name}`, all),
      facts([
        ["Kind", job.kind],
        ["Bound", share(job.replicas ? job.bound / job.replicas : 0, `${count(job.bound)} of ${count(job.replicas)}`)],
        ["Queued", count(job.queued)],
        ["Unschedulable", count(job.unschedulable)],
        ["Failed", count(job.failed)],
        ["Gang", job.minAvailable ? `${job.gang}, ${count(job.minAvailable)} at least` : "none"],
        ["Submitted", when(job.submitted)],
      ]),
      ...(waiting.length ? [section("Why pods wait", table(waitingColumns, waiting.slice(0, 5), "Pods that wait"))] : []),
      section("What happened", list([
        ["Event", (step) => step.text],
        ["Pods", (step) => count(step.pods), "n"],
        ["First", (step) => clock(step.first)],
        ["Last", (step) => clock(step.last)],
      ], job.steps, "What happened", "Nothing is kept of this job.")),
      section(more ? "Its first pods" : "Its pods", list(without("Job"), pods, "Pods", "It has no pods.")),
    ];
  }
}

export class NodePage extends Detail {
  listed = "nodes";

  async load(name) {
    const node = await ask(`/api${address(["nodes", name])}`);
    if (node.error) return node;
    const pods = await ask(`/api/lists${address(["pods"], { node: name })}`);
    return { node, pods: pods.rows ?? [], more: Boolean(pods.next) };
  }

  draw({ node, pods, more }) {
    return [
      heading(`Node ${node.name}`),
      facts([
        ["State", nodeStates(node)],
        ["Neighbours", node.noisy ? "noisy: pods here use far more than they requested. " : "not noisy. ", make("a", { href: address(["nodes"], { labels: "hoss.dev/noisy=true" }) }, "Noisy nodes")],
        ...node.resources.map((resource) => [NAMES[resource.name], share(resource.share, `${resource.requested} of ${resource.allocatable}`)]),
      ]),
      section("Labels", make("p", { class: "why" }, labels(node.labels) || "none")),
      section(more ? "The first pods on it" : "Pods on it", list(without("Node"), pods, "Pods on the node", "No pod that was submitted to HOSS is here.")),
    ];
  }
}

export class WorkerPage extends Detail {
  listed = "workers";

  load(name) {
    return ask(`/api${address(["workers", name])}`);
  }

  draw(worker) {
    const chart = () => make("div", { class: "chart" });
    const legend = () => make("div", { class: "keys" });
    [this.rate, this.rateLegend, this.busy, this.busyLegend] = [chart(), legend(), chart(), legend()];
    const pair = [["Worker", (row) => (row.worker ? link(row.worker, "workers", row.worker) : "nobody")], ["Reason", (row) => row.reason], ["Pods", (row) => count(row.pods), "n"]];
    return [
      heading(`Worker ${worker.name}`, make("a", { href: address(["timeline"], { worker: worker.name }) }, "Its timeline")),
      facts([
        ["State", state(worker.state), ` since ${when(worker.since)}`],
        ["Profile", worker.profile || "unknown"],
        ...(worker.failing ? [["Fails at everything", worker.failing]] : []),
        ["Labels", labels(worker.labels) || "none"],
        ["Pods per second", count(worker.podsPerSecond)],
        ["Busy", share(worker.busyShare)],
        ["Load", share(worker.window ? worker.outstanding / worker.window : 0, `${count(worker.outstanding)} of ${count(worker.window)} pods, ${duration(worker.workMs / 1000)}`)],
        ["CPU for a pod", duration(worker.microsPerPod / 1e6)],
        ["Refused", share(worker.conflictShare, `${percent(worker.conflictShare)}: ${count(worker.conflicts)} of ${count(worker.proposed)}`)],
        ["Bound so far", count(worker.bound)],
        ["Found no node", count(worker.unschedulable)],
        ["Given back", count(worker.returned)],
        ["View behind", `${count(worker.behind)} changes`],
        ...(worker.distrustedUntil ? [["Distrusted", `until ${clock(worker.distrustedUntil)}`]] : []),
      ]),
      section("Pods per second, within an hour", this.rateLegend, this.rate),
      section("Busy and refused, within an hour", this.busyLegend, this.busy),
      section("Lost to", list(pair, worker.lost, "Lost to", "It lost no proposal to anybody.")),
      section("Won against", list(pair, worker.won, "Won against", "Nobody lost a proposal to it.")),
      section("What happened", list([
        ["Event", (step) => step.text || step.state],
        ["State", (step) => step.state],
        ["When", (step) => when(step.at)],
      ], worker.steps, "What happened", "Nothing is kept of this worker.")),
    ];
  }

  after({ points }) {
    if (!points) return;
    const options = { gapMs: WORKER_GAP_MS, spanMs: 3_600_000 };
    const at = points.length ? points[points.length - 1][0] : 0;
    new Chart(this.rate, this.rateLegend, [{ name: "bound", of: (point) => point[1] }], { ...options, log: false, write: count, most: 3 }).show(points, at);
    new Chart(this.busy, this.busyLegend, [{ name: "busy", of: (point) => point[2] }, { name: "refused", of: (point) => point[3] }], { ...options, log: false, write: percent, most: 1 }).show(points, at);
  }
}

/** What is shown where there is no page for this viewer. `why()` says it. */
export class NoPage {
  constructor(title, why) {
    Object.assign(this, { title, why });
  }

  open(place) {
    place.replaceChildren(heading(this.title), make("p", { class: "why" }, `${this.why()} `, make("a", { href: "/" }, "Overview")));
  }

  refresh() {}
}
