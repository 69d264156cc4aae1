// The address says what is shown: its path which page, its query which filters. So a link to it can be shared.

const PAGES = [
  ["overview", /^\/$/],
  ["jobs", /^\/jobs$/],
  ["pods", /^\/pods$/],
  ["nodes", /^\/nodes$/],
  ["workers", /^\/workers$/],
  ["tenants", /^\/tenants$/],
  ["timeline", /^\/timeline$/],
  ["fragmentation", /^\/fragmentation$/],
  ["policy", /^\/policy$/],
  ["events", /^\/events$/],
  ["job", /^\/jobs\/([^/]+)\/([^/]+)$/],
  ["node", /^\/nodes\/([^/]+)$/],
  ["worker", /^\/workers\/([^/]+)$/],
];

/** What the address names: `{page, names, query}`. An address of no page is the page "missing". */
export function here() {
  const query = new URLSearchParams(location.search);
  for (const [page, pattern] of PAGES) {
    const found = pattern.exec(location.pathname);
    if (found) {
      try {
        return { page, names: found.slice(1).map(decodeURIComponent), query };
      } catch (error) {
        if (!(error instanceof URIError)) throw error; // such as for `%zz`, which is no quoted character
        break;
      }
    }
  }
  return { page: "missing", names: [], query };
}

/** An address, its parts quoted. Filters without a value are left out. */
export function address(parts, filters = {}) {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== "" && value !== undefined));
  const path = `/${parts.map(encodeURIComponent).join("/")}`;
  return query.size ? `${path}?${query}` : path;
}

let onMove = () => {};

export function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  onMove();
}

/** Call `move` whenever another page is wanted; links of this site do not load the document anew. */
export function route(move) {
  onMove = move;
  addEventListener("popstate", move);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='/']");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.getAttribute("href"));
    scrollTo(0, 0);
  });
}
