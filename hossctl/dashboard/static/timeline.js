// When workers had which batches: a lane for each worker, a bar for each message of outcomes. As many bars as there
// are pixels are drawn on one canvas; the numbers are in a table below.

import { ask } from "./api.js";
import { colour, make, say } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { address, go, here } from "./router.js";
import { heading, link, table } from "./table.js";

const SPANS = [["10", "10 s"], ["60", "1 min"], ["300", "5 min"], ["3600", "1 hour"]];
const LANE = 46;
const BAR = 16;
const TOP = 6;
const AXIS = 22;
const MOST_LANES = 40;

export class TimelinePage {
  open(place) {
    this.place = place;
    const wanted = here().query.get("seconds") ?? "60";
    this.seconds = SPANS.some(([seconds]) => seconds === wanted) ? wanted : "60";
    this.worker = here().query.get("worker") ?? "";
    this.frozen = false;
    const spans = SPANS.map(([seconds, title]) => {
      const button = make("button", { type: "button", onclick: () => go(address(["timeline"], { seconds, worker: this.worker }), { replace: true }) }, title);
      button.setAttribute("aria-pressed", String(seconds === this.seconds));
      return button;
    });
    this.hold = make("button", { type: "button", onclick: () => this.freeze() }, "Hold");
    this.hold.setAttribute("aria-pressed", "false");
    this.canvas = make("canvas", { class: "lanes", role: "img" });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.told = make("p", { class: "node-now", role: "status" }, "Point at a bar for its numbers.");
    this.legend = make("div", { class: "legend" }, ...[["queued", "in queue"], ["deciding", "deciding"], ["committing", "committing"], ["refused", "not bound"]].flatMap(([kind, title]) => [make("i", { class: kind }), make("span", {}, title)]));
    this.sums = make("div");
    place.replaceChildren(
      heading(this.worker ? `Timeline of ${this.worker}` : "Timeline of decisions", make("div", { class: "tabs", role: "group", "aria-label": "Span" }, ...spans), this.hold),
      make("div", { class: "map lanes-map" }, this.canvas),
      make("div", { class: "foot" }, this.told, this.legend),
      this.sums,
    );
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.canvas.parentElement);
    return this.refresh();
  }

  freeze() {
    this.frozen = !this.frozen;
    this.hold.setAttribute("aria-pressed", String(this.frozen));
    say(this.hold, this.frozen ? "Go on" : "Hold");
  }

  async refresh() {
    if (this.frozen) return;
    const canvas = this.canvas;
    const said = await ask(`/api/timeline?${new URLSearchParams({ seconds: this.seconds, worker: this.worker })}`);
    if (canvas !== this.canvas || !this.place.contains(canvas)) return;
    if (said.error) return say(this.told, said.error);
    this.take(said);
    this.draw();
    this.sum();
  }

  take({ now, since, workers, columns, rows }) {
    Object.assign(this, { now, since });
    const at = Object.fromEntries(columns.map((name, column) => [name, column]));
    const lanes = new Map();
    for (const row of rows) {
      const name = workers[row[at.worker]];
      if (!lanes.has(name)) lanes.set(name, []);
      const end = row[at.answered_ms];
      const committing = Math.min(row[at.committing_micros] / 1000, end - row[at.sent_ms]);
      lanes.get(name).push({ end, sent: row[at.sent_ms], committing, deciding: row[at.deciding_micros] / 1000, queued: row[at.queued_ms], bound: row[at.bound], others: row[at.others] });
    }
    this.lanes = [...lanes].sort(([a], [b]) => a.localeCompare(b)).slice(0, MOST_LANES);
    for (const [, bars] of this.lanes) {
      let free = -Infinity;
      for (const bar of bars) {
        // A worker takes one batch after the other: before the answer to the one before it had not begun.
        bar.begin = Math.min(Math.max(bar.sent, free), bar.end);
        free = bar.end;
      }
    }
  }

  draw() {
    if (!this.lanes || !this.canvas.isConnected) return;
    const width = this.canvas.parentElement.clientWidth;
    const height = TOP + AXIS + LANE * Math.max(1, this.lanes.length);
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [text, soft, line, queued, deciding, committing, refused] = ["--text", "--soft", "--line", "--ghost", "--accent", "--commit", "--bad"].map(colour);
    pen.font = "12px system-ui, sans-serif";
    this.x = (ms) => ((ms - this.since) / (this.now - this.since)) * width;
    const marks = Math.max(1, Math.min(5, Math.floor(width / 90)));  // a time of day is 60 pixels wide
    for (let mark = 0; mark <= marks; mark++) {
      const x = (mark / marks) * width;
      pen.fillStyle = line;
      pen.fillRect(Math.min(x, width - 1), TOP, 1, height - AXIS - TOP);
      pen.fillStyle = soft;
      pen.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
      pen.fillText(clock(this.since + (mark / marks) * (this.now - this.since)), x, height - 6);
    }
    pen.textAlign = "left";
    this.lanes.forEach(([name, bars], number) => {
      const top = TOP + number * LANE;
      pen.fillStyle = text;
      pen.fillText(name, 4, top + 13);
      const y = top + 18;
      for (const bar of bars) {
        const part = (from, to, fill, up, tall) => {
          const left = Math.max(0, this.x(from));
          const wide = Math.max(this.x(to) - left, from < to ? 1 : 0);
          if (wide <= 0) return;
          pen.fillStyle = fill;
          pen.fillRect(left, up, wide, tall);
        };
        part(bar.sent - bar.queued, bar.sent, queued, y + BAR + 2, 3);
        part(bar.begin, bar.end - bar.committing, deciding, y, BAR);
        part(Math.max(bar.begin, bar.end - bar.committing), bar.end, committing, y, BAR);
        if (bar.others) part(bar.begin, bar.end, refused, y - 3, 2);
      }
    });
    if (!this.lanes.length) {
      pen.fillStyle = soft;
      pen.fillText("No worker had a batch in this time.", 4, TOP + 18);
    }
    this.canvas.setAttribute("aria-label", `Batches of ${this.lanes.length} ${this.lanes.length === 1 ? "worker" : "workers"}; the table below has the sums`);
  }

  point(event) {
    if (!this.lanes || !this.x) return;
    const [name, bars] = this.lanes[Math.floor((event.offsetY - TOP) / LANE)] ?? ["", []];
    const distance = (bar) => {
      const [left, right] = [this.x(bar.begin), this.x(bar.end)];
      return event.offsetX < left ? left - event.offsetX : event.offsetX > right ? event.offsetX - right : 0;
    };
    const nearest = bars.reduce((best, bar) => (best && distance(best) <= distance(bar) ? best : bar), null);
    if (!nearest || distance(nearest) > 12) return;
    const parts = [`${count(nearest.bound)} bound`, ...(nearest.others ? [`${count(nearest.others)} not`] : []), `queued ${duration(nearest.queued / 1000)}`, `deciding ${duration(nearest.deciding / 1000)}`, `committing ${duration(nearest.committing / 1000)}`];
    this.told.replaceChildren(make("b", {}, name), ` ${clock(nearest.end)} · ${parts.join(" · ")}`);
  }

  sum() {
    const mean = (bars, of) => bars.reduce((sum, bar) => sum + of(bar), 0) / bars.length / 1000;
    const rows = this.lanes.map(([name, bars]) => ({
      name,
      answers: bars.length,
      bound: bars.reduce((sum, bar) => sum + bar.bound, 0),
      others: bars.reduce((sum, bar) => sum + bar.others, 0),
      queued: mean(bars, (bar) => bar.queued),
      deciding: mean(bars, (bar) => bar.deciding),
      committing: mean(bars, (bar) => bar.committing),
    }));
    const columns = [
      ["Worker", (row) => link(row.name, "workers", row.name)],
      ["Answers", (row) => count(row.answers), "n"],
      ["Bound", (row) => count(row.bound), "n"],
      ["Not bound", (row) => count(row.others), "n"],
      ["In queue, mean", (row) => duration(row.queued), "n"],
      ["Deciding, mean", (row) => duration(row.deciding), "n"],
      ["Committing, mean", (row) => duration(row.committing), "n"],
    ];
    this.sums.replaceChildren(...(rows.length ? [table(columns, rows, "Sums of the timeline")] : []));
  }
}
