// What the dashboard has told, put together: sections by name, the curves' points, and the nodes as one byte array.

const KEPT_POINTS = 300;

export function emptyModel() {
  return { at: 0, sections: {}, points: [], nodes: { names: [], resources: [], values: new Uint8Array(0), stride: 1 } };
}

/** Take a message in. Returns what is new: names of sections, and "points"; `rows`: positions of nodes, or "all". */
export function take(model, message) {
  if (message.whole) Object.assign(model, emptyModel());
  model.at = message.at;
  const fresh = new Set(Object.keys(message.sections ?? {}));
  Object.assign(model.sections, message.sections);
  if (message.points) {
    model.points = [...model.points, ...message.points].slice(-KEPT_POINTS);
    fresh.add("points");
  }
  return { fresh, rows: message.nodes ? takeNodes(model, message.nodes) : [] };
}

function takeNodes(model, told) {
  const values = bytes(told.values);
  if (told.names) {
    const stride = told.resources.length + 1;
    model.nodes = { names: told.names, resources: told.resources, values, stride };
    return "all";
  }
  const rows = new Uint32Array(bytes(told.changed).buffer);
  const { stride } = model.nodes;
  rows.forEach((row, i) => model.nodes.values.set(values.subarray(i * stride, (i + 1) * stride), row * stride));
  return rows;
}

function bytes(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}
