// A list: its filters are a form whose values are in the address, its rows a table, and one page at a time.

import { ask } from "./api.js";
import { announce, caption, make, say } from "./dom.js";
import { count } from "./format.js";
import { address, go, here } from "./router.js";

/** A page's heading. */
export function heading(title, ...more) {
  return make("div", { class: "head" }, make("h2", { id: "page-h", tabIndex: -1 }, title), ...more);
}

/** A table of `rows`. Columns: `[title, cell(row)]`, with "n" as a third part for numbers. */
export function table(columns, rows, label) {
  const head = make("tr", {}, ...columns.map(([title, , kind]) => make("th", { scope: "col", class: kind ?? "" }, title)));
  const body = rows.map((row) =>
    make("tr", {}, ...columns.map(([, cell, kind], i) => {
      const content = cell(row);
      const parts = Array.isArray(content) ? content : [content];
      return i ? make("td", { class: kind ?? "" }, ...parts) : make("th", { scope: "row" }, ...parts);
    })),
  );
  const shown = make("table", { class: "list" }, caption(label), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll tall", tabIndex: 0, role: "group", "aria-label": `${label}: may be scrolled` }, shown);
}

const LONGEST_LINE = 32; // characters of a name; longer ones are shown on several lines

export const link = (text, ...parts) => make("a", { class: text.length > LONGEST_LINE ? "long" : "", href: address(parts) }, text);

/** One list page. `fields`: `[name, title, kind, choices]` of its filters; `load(query)`: its rows, or from the API;
 * `empty`: said where no row passes the filters; `none`: where there are no filters and no rows. */
export class List {
  constructor({ path, title, fields, columns, empty, none = empty, load }) {
    Object.assign(this, { path, title, fields, columns, empty, none });
    this.load = load ?? ((query) => ask(`/api/lists${path}?${query}`));
  }

  open(place) {
    this.place = place;
    this.count = make("span", { class: "count" });
    this.announced = false;
    this.form = make("form", { class: "filters", role: "search", "aria-label": `Filter ${this.title.toLowerCase()}` }, ...this.fields.map((field) => this.field(field)));
    this.form.addEventListener("change", () => this.filter());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.filter();
    });
    this.holder = make("div", {}, make("p", { class: "why" }, "Reading …"));
    this.pager = make("div", { class: "pager" });
    place.replaceChildren(heading([this.title, " "].join(""), this.count), this.form, this.holder, this.pager);
    this.drawn = "";
    return this.refresh();
  }

  field([name, title, kind = "text", choices = []]) {
    const value = here().query.get(name) ?? "";
    const input = kind === "choice"
      ? make("select", { name }, ...["", ...choices].map((choice) => make("option", { value: choice, selected: choice === value }, choice || "any")))
      : make("input", { name, value, type: "search", autocomplete: "off", spellcheck: false, maxLength: 300 });
    return make("label", {}, make("span", {}, title), input);
  }

  filter() {
    const values = Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, value.trim()]));
    go(address([this.path.slice(1)], values), { replace: true });
  }

  /** Ask again; the rows are drawn anew where they differ. */
  async refresh() {
    const { query } = here();
    const asked = query.toString();
    const said = await this.load(query);
    if (here().query.toString() !== asked || !this.place.contains(this.holder)) return;
    const text = JSON.stringify(said);
    if (text === this.drawn) return;
    this.drawn = text;
    this.draw(said, query);
  }

  draw(said, query) {
    if (said.error) {
      this.holder.replaceChildren(make("p", { class: "why" }, said.error));
      return this.pager.replaceChildren();
    }
    say(this.count, said.total === undefined ? "" : count(said.total));
    if (!this.announced) announce(`${said.total ?? said.rows.length} ${this.title.toLowerCase()}`);
    this.announced = true;
    const rows = said.rows.length ? table(this.columns, said.rows, this.title) : make("p", { class: "why" }, [...query.values()].some(Boolean) ? this.empty : this.none);
    const scrolled = this.holder.querySelector(".scroll")?.scrollTop ?? 0;
    this.holder.replaceChildren(rows);
    rows.scrollTop = scrolled;
    const at = (page) => address([this.path.slice(1)], { ...Object.fromEntries(query), page });
    this.pager.replaceChildren(
      ...(query.get("page") ? [make("a", { href: at("") }, "First page")] : []),
      ...(said.next ? [make("a", { href: at(said.next) }, "Next page")] : []),
    );
  }
}

