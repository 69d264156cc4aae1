// The few things that every panel does with the document. Text is set as text, never as markup.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Set text only where it differs, so that selections and screen readers are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Have a screen reader say what the viewer's own deed led to. What changes by itself is not announced: on a busy
 * platform that would be all the time. */
export function announce(text) {
  say(find("announced"), text);
}

/** What a table is called; it is not shown, because the heading above says so too. */
export const caption = (text) => make("caption", {}, make("span", { class: "hidden" }, text));

/** Children of `parent` become those of `items`, by key: who stays keeps its element, and with it the focus. */
export function keep(parent, items, key, create, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const gone of before.values()) gone.remove();
}

/** A colour of the style sheet as the browser has worked it out for the theme in force. */
export function colour(name) {
  const probe = make("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
