// A pod's way from submission to node, found by name.

import { announce, find, make } from "./dom.js";
import { clock, moment } from "./format.js";
import { ask, viewer } from "./api.js";
import { address } from "./router.js";

const AGAIN_MS = 2000;

export class Story {
  constructor() {
    this.place = find("story");
    this.name = "";
    document.addEventListener("keydown", (event) => event.key === "Escape" && !this.place.hidden && this.close());
  }

  /** Show the pods of that name; it is asked again now and then for as long as they are shown. */
  async look(name) {
    this.name = name.trim();
    if (!this.name) return this.close();
    await this.refresh();
    this.place.scrollIntoView({ block: "nearest" });
  }

  close() {
    this.name = "";
    clearTimeout(this.timer);
    this.place.hidden = true;
  }

  async refresh() {
    clearTimeout(this.timer);
    const name = this.name;
    const said = await ask(`/api/pods?name=${encodeURIComponent(name)}`);
    if (name !== this.name) return;
    this.draw(said);
    this.timer = setTimeout(() => this.refresh(), AGAIN_MS);
  }

  draw(said) {
    const text = JSON.stringify(said);
    if (text === this.drawn && !this.place.hidden) return;
    this.drawn = text;
    const close = make("button", { type: "button", "aria-label": "Close", onclick: () => this.close() }, "Close");
    const head = (title) => make("div", { class: "head" }, make("h2", {}, title), close);
    let parts;
    if (said.error) parts = [head("This could not be looked up"), make("p", { class: "why" }, said.error)];
    else if (said.stories.length) parts = [head(said.stories.length > 1 ? `${said.stories.length} pods are called so` : title(said.stories[0])), ...said.stories.flatMap((pod) => this.pod(pod, said.stories.length > 1))];
    else parts = [head(`No pod is called ${this.name}`), ...this.suggested(said.suggestions)];
    this.place.replaceChildren(...parts);
    announce(parts[0].firstChild.textContent);
    this.place.hidden = false;
  }

  pod(pod, several) {
    return [
      ...(several ? [make("p", { class: "why" }, title(pod))] : []),
      make("ol", {}, ...pod.steps.map(step)),
      ...(pod.reason ? [make("p", { class: "why" }, pod.reason)] : []),
      make("p", { class: "links" }, ...this.links(pod)),
      ...pod.faults.map((fault) => make("p", { class: "faults" }, `${clock(fault.at)} ${fault.text}`)),
    ];
  }

  links({ namespace, job, node, worker }) {
    const links = [[job, `Job ${job}`, ["jobs", namespace, job]], [worker, `Worker ${worker}`, ["workers", worker]], [node, `Node ${node}`, ["nodes", node]]];
    // A tenant's viewer sees neither workers nor nodes.
    return links.filter(([name, , [page]]) => name && (page === "jobs" || !viewer.tenant)).map(([, text, parts]) => make("a", { href: address(parts) }, text));
  }

  suggested(names) {
    if (!names.length) return [make("p", { class: "why" }, "Names are looked up whole, as in web-3 or default/web-3.")];
    const buttons = names.map((name) => make("button", { type: "button", onclick: () => this.look(name) }, name));
    return [make("p", { class: "why" }, "Pods of jobs whose name begins so:"), make("div", { class: "suggested" }, ...buttons)];
  }
}

const title = (pod) => `${pod.namespace}/${pod.name}: ${pod.phase.toLowerCase()}`;

function step({ name, state, text, at }) {
  const item = make("li", { class: "step" }, make("b", {}, name), make("span", {}, text));
  item.dataset.state = state;
  if (state === "now") item.setAttribute("aria-current", "step");
  if (at) item.append(make("time", { dateTime: new Date(at).toISOString() }, moment(at)));
  return item;
}
