// The lists: jobs, pods, nodes, workers and tenants.

import { make } from "./dom.js";
import { count, duration, percent, when } from "./format.js";
import { address } from "./router.js";
import { List, link } from "./table.js";

const PHASES = ["Queued", "Scheduling", "Bound", "Unschedulable", "Backoff", "Failed", "Deleted"];

export function phase(text) {
  const shown = make("span", { class: "phase" }, text);
  shown.dataset.phase = text;
  return shown;
}

export function share(of, text = percent(of)) {
  const bar = make("meter", { min: 0, max: 1, value: Math.min(of, 1), "aria-hidden": "true" });
  return make("div", { class: "meter" }, bar, make("small", {}, text));
}

export const state = (text) => {
  const shown = make("span", { class: "state" }, text);
  shown.dataset.state = text;
  return shown;
};

export const NODE_STATES = ["cordoned", "quarantined", "shrunk"];
export const nodeStates = (node) => [...NODE_STATES.filter((name) => node[name]), ...(node.noisy ? ["noisy"] : [])].join(", ") || "open";
const amount = (node, name) => {
  const found = node.resources.find((resource) => resource.name === name);
  return found ? share(found.share, `${found.requested} of ${found.allocatable}`) : "–";
};

export const podColumns = [
  ["Pod", ({ namespace, name }) => make("a", { href: address(["pods"], { namespace, name }) }, `${namespace}/${name}`)],
  ["Phase", (pod) => phase(pod.phase)],
  ["Job", (pod) => (pod.job ? link(pod.job, "jobs", pod.namespace, pod.job) : "–")],
  ["Node", (pod) => (pod.node ? link(pod.node, "nodes", pod.node) : "–")],
  ["Worker", (pod) => (pod.worker ? link(pod.worker, "workers", pod.worker) : "–")],
  ["Requests", (pod) => Object.entries(pod.requests).map(([name, value]) => `${name} ${value}`).join(", ") || "–"],
  ["Since", (pod) => when(pod.since)],
  ["Tried", (pod) => count(pod.attempts), "n"],
  ["Reason", (pod) => (pod.reason ? make("span", { class: "reason", title: pod.reason }, pod.reason) : "–")],
];

/** Of pods that wait: why comes first, because a phone shows no more. */
export const waitingColumns = ["Pod", "Reason", "Requests", "Since", "Tried", "Worker"].map((name) => podColumns.find(([title]) => title === name));

const podFields = [
  ["namespace", "Namespace"],
  ["name", "Name (whole)"],
  ["job", "Job"],
  ["phase", "Phase", "choice", PHASES],
  ["node", "Node"],
  ["labels", "Labels"],
];

/** The lists by page. `snapshot()`: the sections of the latest one, in which workers are. */
export const lists = (snapshot) => ({
  jobs: new List({
    path: "/jobs",
    title: "Jobs",
    fields: [["namespace", "Namespace"], ["name", "Name begins with"]],
    empty: "No job matches these filters.",
    none: "No jobs yet. hoss submit -f FILE submits some.",
    columns: [
      ["Job", (job) => link(`${job.namespace}/${job.name}`, "jobs", job.namespace, job.name)],
      ["Kind", (job) => job.kind],
      ["Bound", (job) => share(job.replicas ? job.bound / job.replicas : 0, `${count(job.bound)} of ${count(job.replicas)}`)],
      ["Queued", (job) => count(job.queued), "n"],
      ["Unschedulable", (job) => count(job.unschedulable), "n"],
      ["Failed", (job) => count(job.failed), "n"],
      ["Deleted", (job) => count(job.deleted), "n"],
      ["Gang", (job) => (job.minAvailable ? `${job.gang}, ${count(job.minAvailable)} at least` : "–")],
      ["Submitted", (job) => when(job.submitted)],
    ],
  }),
  pods: new List({ path: "/pods", title: "Pods", fields: podFields, empty: "No pod matches these filters.", none: "No pods yet. hoss submit -f FILE submits some.", columns: podColumns }),
  nodes: new List({
    path: "/nodes",
    title: "Nodes",
    fields: [
      ["name", "Name contains"],
      ["labels", "Label"],
      ["state", "State", "choice", [...NODE_STATES, "open"]],
      ["sort", "First", "choice", ["full"]],
    ],
    empty: "No node matches these filters.",
    none: "No nodes yet. hoss nodes add -f FILE adds some.",
    columns: [
      ["Node", (node) => link(node.name, "nodes", node.name)],
      ["State", nodeStates],
      ["CPU", (node) => amount(node, "cpu")],
      ["Memory", (node) => amount(node, "memory")],
      ["Pods", (node) => amount(node, "pods")],
      ["Cards", (node) => amount(node, "cards")],
    ],
  }),
  workers: new List({
    path: "/workers",
    title: "Workers",
    fields: [["name", "Name contains"], ["label", "Label"], ["state", "State", "choice", ["Joining", "Ready", "Cordoned", "Draining", "Lost", "Left"]]],
    empty: "No worker matches these filters.",
    none: "No worker has registered: pods wait. hoss worker add NAME adds one to a local platform.",
    load: (query) => ({ rows: (snapshot().workers ?? []).filter((worker) => matches(worker, query)), next: "" }),
    columns: [
      ["Worker", (worker) => link(worker.name, "workers", worker.name)],
      ["State", (worker) => state(worker.state)],
      ["Labels", (worker) => make("span", { class: "long" }, labels(worker.labels) || "–")],
      ["Pods/s", (worker) => count(worker.podsPerSecond), "n"],
      ["Load", (worker) => share(worker.window ? worker.outstanding / worker.window : 0, worker.outstanding ? `${count(worker.outstanding)}, ${duration(worker.workMs / 1000)}` : "idle")],
      ["Busy", (worker) => share(worker.busyShare)],
      ["Conflicts", (worker) => share(worker.conflictShare)],
      ["Bound so far", (worker) => count(worker.bound), "n"],
    ],
  }),
  tenants: new List({
    path: "/tenants",
    title: "Tenants",
    fields: [],
    empty: "No tenant has pods.",
    columns: [
      ["Tenant", (tenant) => tenant.name || "(none)"],
      ["Holds", (tenant) => share(tenant.share, `${percent(tenant.share)} of ${tenant.resource || "the cluster"}`)],
      ["Weight", (tenant) => `${tenant.weight}`, "n"],
      ["Bound", (tenant) => count(tenant.bound), "n"],
      ["With workers", (tenant) => count(tenant.scheduling), "n"],
      ["Queued", (tenant) => count(tenant.queued), "n"],
      ["Unschedulable", (tenant) => count(tenant.unschedulable), "n"],
    ],
  }),
});

export const labels = (pairs) => Object.entries(pairs).map(([key, value]) => `${key}=${value}`).join(", ");

function matches(worker, query) {
  const [key, value] = (query.get("label") ?? "").split("=");
  return worker.name.includes(query.get("name") ?? "")
    && (!query.get("state") || worker.state === query.get("state"))
    && (!key || (key in worker.labels && (value === undefined || worker.labels[key] === value)));
}
