// What all explorers share: the words beside a picture, its controls, and SVG as text.
// A picture is drawn anew, in CSS pixels, whenever a control moves or its width changes.

/** One SVG element as text. */
export function tag(name, attributes = {}, inside = "") {
  const written = Object.entries(attributes).map(([key, value]) => ` ${key}="${value}"`).join("");
  return `<${name}${written}>${inside}</${name}>`;
}

/** A line from one point to another. */
export function line(x1, y1, x2, y2, looks = "") {
  return tag("line", { x1, y1, x2, y2, class: looks });
}

/** Words at a place; the class can be start, middle or end, and more. */
export function words(x, y, text, looks = "start", more = {}) {
  return tag("text", { x, y, class: looks, ...more }, text);
}

/** A line through points [x, y]. */
export function path(points, looks = "") {
  return tag("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, class: looks });
}

/** The sign of a group of clients who turn their digits: a 7 that is turned like theirs. */
export function turnedSeven(x, y, group, looks = "") {
  const turn = `translate(${x} ${y}) rotate(${-90 * group})`;
  return tag("text", { transform: turn, y: 5, class: `sign middle ${looks}` }, "7");
}

/** The class of what belongs to a cluster: the colour of the group that it is exactly, or grey. */
export function colour(group) {
  return group < 0 ? "grey" : `k${group}`;
}

/** The part of an element that is there. @param {Element} whole @param {string} selector @returns {any} */
const part = (whole, selector) => whole.querySelector(selector);

/**
 * Write an explorer's words and an empty picture into a section.
 * @param {HTMLElement} element
 * @param {{question: string, answer: string, key: string, lesson: string, link: string}} told
 * @returns {{controls: HTMLElement, picture: HTMLElement, say: (sentence: string) => void}}
 */
export function explorer(element, { question, answer, key, lesson, link }) {
  element.innerHTML = `
    <div class="told">
      <h2>${question}</h2>
      <p>${answer}</p>
      <div class="controls"></div>
      <p class="state" role="status"></p>
    </div>
    <figure>
      <div class="picture"></div>
      <figcaption>${key} <a href="#lessons" data-page="${lesson}">${link}</a></figcaption>
    </figure>`;
  const state = part(element, ".state");
  return {
    controls: part(element, ".controls"),
    picture: part(element, ".picture"),
    say: (sentence) => { if (state.innerHTML !== sentence) state.innerHTML = sentence; },
  };
}

/**
 * Add a slider.
 * @param {HTMLElement} controls
 * @param {{label: string, min: number, max: number, step: number, value: number,
 *   show?: (value: number) => string}} options
 * @param {() => void} changed
 * @returns {{value: number}} its value, which can also be set
 */
export function slider(controls, { label, min, max, step, value, show = String }, changed) {
  const whole = document.createElement("label");
  whole.className = "slider";
  whole.innerHTML = `<span>${label}</span><output></output>
    <input type="range" min="${min}" max="${max}" step="${step}" value="${value}">`;
  const [output, input] = [part(whole, "output"), part(whole, "input")];
  const tell = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { tell(); changed(); });
  controls.append(whole);
  tell();
  return {
    get value() { return Number(input.value); },
    set value(wanted) { input.value = String(wanted); tell(); changed(); },
  };
}

/**
 * Add a row of buttons, of which one is pressed.
 * @param {HTMLElement} controls
 * @param {string} label
 * @param {string[]} options
 * @param {() => void} changed
 * @param {number} first the place of the one that is pressed at first
 * @returns {{value: number}} the place of the pressed one
 */
export function choice(controls, label, options, changed, first = 0) {
  const whole = document.createElement("fieldset");
  const name = label.replace(/\W/g, "");
  whole.innerHTML = `<legend>${label}</legend>` + options.map((option, k) =>
    `<label><input type="radio" name="${name}" value="${k}"${k === first ? " checked" : ""}><span>${option}</span></label>`).join("");
  whole.addEventListener("change", changed);
  controls.append(whole);
  return { get value() { return Number(part(whole, ":checked").value); } };
}

/**
 * Add a menu, whose options are in groups.
 * @param {HTMLElement} controls
 * @param {string} label
 * @param {Record<string, string[]>} groups the options of each group, by its name
 * @param {() => void} changed
 * @param {string} first the option that is chosen at first
 * @returns {{value: string}} the chosen one
 */
export function menu(controls, label, groups, changed, first) {
  const whole = document.createElement("label");
  whole.className = "menu";
  whole.innerHTML = `<span>${label}</span> <select>` + Object.entries(groups).map(([group, options]) => `<optgroup label="${group}">` +
    options.map((option) => `<option${option === first ? " selected" : ""}>${option}</option>`).join("") + "</optgroup>").join("") + "</select>";
  whole.addEventListener("change", changed);
  controls.append(whole);
  const select = part(whole, "select");
  return { get value() { return select.value; } };
}

/**
 * Draw when the reader comes near, and again whenever the picture's width changes.
 * @param {HTMLElement} picture
 * @param {(width: number) => string} draw
 * @returns {() => void} draws again
 */
export function drawn(picture, draw) {
  let near = false;
  const again = () => { if (near && picture.clientWidth) picture.innerHTML = draw(picture.clientWidth); };
  new ResizeObserver(() => requestAnimationFrame(again)).observe(picture);
  new IntersectionObserver((seen, observer) => {
    if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
    near = true;
    observer.disconnect();
    again();
  }, { rootMargin: "600px" }).observe(picture);
  return again;
}

/** A picture of a width and a height, with a text for those who do not see it. */
export function svg(width, height, alternative, inside) {
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  return tag("svg", { ...size, role: "img", "aria-label": alternative }, inside);
}

/**
 * Let the reader drag what has a data-handle.
 * @param {HTMLElement} picture
 * @param {(handle: string, x: number, y: number) => void} moved
 */
export function draggable(picture, moved) {
  /** @type {string | null} */
  let held = null;
  const move = (event) => {
    const box = picture.getBoundingClientRect();
    if (held) moved(held, event.clientX - box.left, event.clientY - box.top);
  };
  picture.addEventListener("pointerdown", (event) => {
    const handle = /** @type {Element} */ (event.target).closest("[data-handle]");
    held = handle && handle.getAttribute("data-handle");
    if (held) picture.setPointerCapture(event.pointerId);
    move(event);
  });
  picture.addEventListener("pointermove", move);
  for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => { held = null; });
}
