// The pages of what happened, and of the policies that were in force.

import { ask } from "./api.js";
import { make } from "./dom.js";
import { when } from "./format.js";
import { heading, link, List } from "./table.js";

const KINDS = ["dispatcher", "worker", "policy", "overlap", "conflicts", "problem", "solved"];
const WORDS = { dispatcher: "Dispatcher", worker: "Worker", policy: "Policy", overlap: "Overlap", conflicts: "Conflicts", problem: "Problem", solved: "Solved" };

export const events = new List({
  path: "/events",
  title: "Events",
  fields: [["kind", "Kind", "choice", KINDS], ["text", "Text contains"]],
  empty: "No such event within the last hour, or since this dashboard began.",
  none: "Nothing happened within the last hour, or since this dashboard began.",
  load: async (query) => {
    const said = await ask("/api/events");
    if (said.error) return said;
    const text = (query.get("text") ?? "").toLowerCase();
    const wanted = (event) => (!query.get("kind") || event.kind === query.get("kind")) && `${event.name} ${event.text}`.toLowerCase().includes(text);
    return { rows: said.events.filter(wanted), next: "" };
  },
  columns: [
    ["When", (event) => make("span", { class: "when" }, when(event.at))],
    ["What", (event) => kind(event.kind)],
    ["Event", (event) => make("span", { class: "reason" }, event.text)], // before what it is of: a phone shows no more
    ["Of", (event) => (event.kind === "worker" ? link(event.name, "workers", event.name) : event.name || "–")],
  ],
});

function kind(name) {
  const shown = make("span", { class: "phase" }, WORDS[name] ?? name);
  shown.dataset.phase = { problem: "Failed", conflicts: "Unschedulable", solved: "Bound" }[name] ?? "";
  return shown;
}

export class PolicyPage {
  open(place) {
    this.place = place;
    this.body = make("div");
    this.drawn = "";
    place.replaceChildren(heading("Policy"), this.body);
    return this.refresh();
  }

  async refresh() {
    const said = await ask("/api/policies");
    const text = JSON.stringify(said);
    if (!this.place.contains(this.body) || text === this.drawn) return;
    this.drawn = text;
    if (said.error) return this.body.replaceChildren(make("p", { class: "why" }, said.error));
    this.body.replaceChildren(...said.policies.map((policy, number) => this.policy(policy, number === 0)));
  }

  policy(policy, inForce) {
    const since = policy.since ? `since ${when(policy.since)}` : "";
    const title = make("summary", {}, make("b", {}, policy.name || "Every worker may have every pod"), ` version ${policy.version}, ${policy.source} ${since}${inForce ? ", in force" : ""}`);
    const warnings = policy.warnings.map((warning) => make("p", { class: "faults" }, warning));
    return make("details", { class: "part policy", open: inForce }, title, ...warnings, make("pre", { tabIndex: 0 }, policy.yaml || "No document: pods go to the least busy worker."));
  }
}
