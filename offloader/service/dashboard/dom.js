/**
 * Elements from values.
 *
 * Must never make markup out of text: whatever comes from outside becomes a text node or an attribute that can't run.
 */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** `el("p", {class: "note"}, "text", otherElement)`; what is null or false is left out. */
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** The same for pictures. */
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Says something only if it is new: the document isn't touched, and nothing is read aloud twice. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** `data-state` of a badge, tile or pill. */
export function mark(node, state) {
  if (node.dataset.state !== state) node.dataset.state = state;
}

/**
 * Makes the children of `parent` those of `items`, in their order. An item that was there keeps its element, and so
 * focus and selection in it.
 *
 * @param {(item) => string} key
 * @param {(item) => Element} make
 * @param {(element, item) => void} update is called for each, new ones too
 */
export function keep(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = old.get(name);
    old.delete(name);
    if (!node) {
      node = make(item);
      node.dataset.key = name;
    }
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
  for (const node of old.values()) node.remove();
}

/**
 * Makes the children of `parent` look like `made`, changing as little as possible: an element that stays what it was
 * keeps focus and selection. What is `made` has no listeners of its own.
 */
export function show(parent, ...made) {
  const fresh = made.filter(Boolean);
  fresh.forEach((node, at) => {
    const old = parent.childNodes[at];
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node)) alter(old, node);
  });
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

function alter(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) === value) continue;
    // a style in an attribute is what the page's own rules forbid
    if (name === "style") old.style.cssText = fresh.style.cssText;
    else old.setAttribute(name, value);
  }
  show(old, ...fresh.childNodes);
}

/** A card with a heading; `body` is what changes. */
export function card(title, ...aside) {
  const heading = el("h2", {}, title);
  const body = el("div");
  const section = el("section", { class: "card", "aria-label": title }, el("header", {}, heading, ...aside), body);
  return { section, heading, body };
}

/**
 * A table with headings. On a narrow screen each row becomes a card of its own, which needs the roles said again.
 *
 * @param {Array<[string, string]>} columns name and class
 */
export function table(columns, label, className = "") {
  const body = el("tbody", { role: "rowgroup" });
  const heads = columns.map(([name, kind]) => el("th", { class: kind, scope: "col", role: "columnheader" }, name));
  const whole = el(
    "table",
    { class: `cards ${className}`, role: "table", "aria-label": label },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)),
    body,
  );
  return { whole: el("div", { class: "wide" }, whole), body, columns };
}

/** A row for `table`: cells are text, elements or arrays of them. */
export const row = (columns, cells) =>
  el(
    "tr",
    { role: "row" },
    ...columns.map(([name, kind], at) =>
      el("td", { class: kind, role: "cell", "data-label": name }, ...[cells[at]].flat()),
    ),
  );
