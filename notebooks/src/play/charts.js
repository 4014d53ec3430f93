// @ts-check
/**
 * The pictures: the star, the matrix and the curves. Each function draws one of them anew.
 *
 * @typedef {{name?: string, values: (number | null)[], look: string}} Series  one value per round; without a name, no words
 */

/** The marks of the true groups, as paths around (0, 0) */
export const MARKS = [
  "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0",
  "M-2.7,-2.7h5.4v5.4h-5.4z",
  "M0,-3.6L3.3,2.4h-6.6z",
  "M0,-3.8L3.2,0L0,3.8L-3.2,0z",
];

/** @param {string} id @returns {any} */
export function element(id) {
  return document.getElementById(id);
}

/** Return an SVG element's text. @param {string} tag @param {Object<string, string | number>} attributes @param {string} [inside] */
export function tag(tag, attributes, inside = "") {
  const listed = Object.entries(attributes).map(([name, value]) => `${name}="${value}"`);
  return `<${tag} ${listed.join(" ")}>${inside}</${tag}>`;
}

/** The colour of a cluster; without one, that of ink. @param {number | undefined} cluster */
export function colour(cluster) {
  return cluster === undefined ? "var(--ink)" : `var(--c${cluster % 8})`;
}

/**
 * Draw the arrows.
 * @param {number[][]} points @param {number[]} truth @param {number[] | null} found
 */
export function drawStar(points, truth, found) {
  const rings = [0.5, 1].map((r) => tag("circle", { r: r * 100, class: "ring" })).join("");
  const arrows = points.map(([x, y], i) => {
    const [u, v] = [x * 100, -y * 100];
    return tag("g", { fill: colour(found?.[i]), stroke: colour(found?.[i]) },
      tag("line", { x2: u.toFixed(2), y2: v.toFixed(2) }) +
      tag("path", { d: MARKS[truth[i]], transform: `translate(${u.toFixed(2)} ${v.toFixed(2)})` },
        tag("title", {}, `client ${i + 1}`)));
  });
  const title = element("star").querySelector("title").outerHTML;
  element("star").innerHTML = title + rings + arrows.join("") + tag("circle", { r: 1.6, class: "centre" });
}

/** Return the red, green and blue of a custom property. @param {string} name */
function rgb(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

/**
 * Paint a picture of one pixel per value, in a colour that is more opaque the larger it is.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 * @param {(x: number, y: number) => [string, number]} pixel  its custom property, and 0 to 1
 */
export function paint(canvas, width, height, pixel) {
  [canvas.width, canvas.height] = [width, height];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(width, height);
  /** @type {Object<string, number[]>} */
  const known = {};
  for (let p = 0; p < width * height; p++) {
    const [name, share] = pixel(p % width, Math.floor(p / width));
    image.data.set([...(known[name] ??= rgb(name)), Math.round(255 * share)], 4 * p);
  }
  context.putImageData(image, 0, 0);
}

/** Paint Γ, solid where two clients agree, between strips of the found clusters. @param {number[][]} gamma @param {number[] | null} found */
export function drawGamma(gamma, found) {
  const m = gamma.length, strip = (/** @type {number} */ i) => /** @type {[string, number]} */ (found ? [`--c${found[i] % 8}`, 1] : ["--line", 1]);
  paint(element("gamma"), m, m, (x, y) => ["--ink", Math.max(0, 1 - gamma[y][x]) ** 1.3]);
  paint(element("found-top"), m, 1, strip);
  paint(element("found-side"), 1, m, (_, y) => strip(y));
}

/**
 * Draw curves over rounds, each with its name at its end.
 * @param {SVGElement} svg @param {string} title @param {Series[]} series @param {number} rounds  on the axis
 * @param {[number, number]} range  of the values @param {(value: number) => string} words
 * @param {{shown: number, rings?: {round: number, value: number, words: string, look: string}[]}} marks
 */
export function drawCurves(svg, title, series, rounds, range, words, { shown, rings = [] }) {
  const [, , width, height] = svg.getAttribute("viewBox")?.split(" ").map(Number) ?? [];
  const [left, right, top, bottom] = [48, width - 128, 12, height - 24]; // with room for the names at the ends
  const x = (/** @type {number} */ round) => left + ((round - 1) / (rounds - 1)) * (right - left);
  const y = (/** @type {number} */ value) => bottom - ((value - range[0]) / (range[1] - range[0])) * (bottom - top);
  const text = (/** @type {number} */ u, /** @type {number} */ v, /** @type {string} */ inside, /** @type {string} */ look) =>
    tag("text", { x: u.toFixed(1), y: v.toFixed(1), class: look }, inside);
  const ticks = [0, 0.5, 1].map((share) => range[0] + share * (range[1] - range[0]));
  const parts = ticks.map((value) =>
    tag("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }) + text(left - 6, y(value) + 4, words(value), "tick end"));
  const every = Math.ceil(rounds / 12);
  for (let round = 1; round <= rounds; round += every) parts.push(text(x(round), height - 6, `${round}`, "tick middle"));
  parts.push(tag("line", { x1: x(shown), x2: x(shown), y1: top, y2: bottom, class: "shown" }));
  /** @type {{u: number, v: number, at: number, inside: string, look: string}[]} */
  const ends = [];
  for (const { name, values, look } of series) {
    const points = values.flatMap((value, t) => (value === null ? [] : [[x(t + 1), y(value)]]));
    if (!points.length) continue;
    const path = points.map(([u, v], k) => `${k ? "L" : "M"}${u.toFixed(1)},${v.toFixed(1)}`).join("");
    parts.push(tag("path", { d: path, class: `curve ${look}` }));
    const last = values[values.length - 1], [u, v] = points[points.length - 1];
    parts.push(tag("circle", { cx: u, cy: v, r: 3.2, class: `dot ${look}` }));
    if (last !== null && name !== undefined) ends.push({ u, v, at: v, inside: `${name} ${words(last)}`, look });
  }
  // Names that would lie on each other move apart
  ends.sort((one, other) => one.v - other.v);
  ends.forEach((end, k) => { if (k) end.at = Math.max(end.at, ends[k - 1].at + 15); });
  const over = Math.max(0, ...ends.map((end) => end.at - bottom));
  for (const { u, at, inside, look } of ends) parts.push(text(u + 9, at - over + 4, inside, `name ${look}`));
  for (const { round, value, words: inside, look } of rings) {
    parts.push(tag("circle", { cx: x(round), cy: y(value), r: 8, class: `trigger ${look}` }));
    parts.push(tag("text", { x: x(round), y: y(value), class: `name ring ${look}` }, inside));
  }
  svg.innerHTML = parts.join("");
  placeRings(svg);
  const told = series.map(({ name = "", values }) => `${name} ${values.map((v) => (v === null ? "–" : words(v))).join(", ")}`);
  svg.setAttribute("aria-label", `${title} round by round: ${told.join("; ")}`);
}

/** Move the words of each ring beside it, where they lie on no other words. @param {SVGElement} svg */
function placeRings(svg) {
  const texts = /** @type {SVGTextElement[]} */ ([...svg.querySelectorAll("text.name")]);
  for (const ring of texts.filter((text) => text.classList.contains("ring"))) {
    const others = texts.filter((text) => text !== ring).map((text) => text.getBBox());
    const [u, v] = ["x", "y"].map((name) => Number(ring.getAttribute(name))), { width } = ring.getBBox();
    // The curve falls before the trigger and rises after it, so that below on the right it is free
    const places = [[10, 17], [-width - 10, -10], [10, -12], [-width - 10, 17], [-width / 2, 30], [-width / 2, -18]];
    const free = places.find(([along, down]) => {
      ring.setAttribute("x", `${u + along}`);
      ring.setAttribute("y", `${v + down}`);
      const box = ring.getBBox();
      return others.every((other) => box.x > other.x + other.width || other.x > box.x + box.width || box.y > other.y + other.height || other.y > box.y + box.height);
    });
    if (!free) ring.remove(); // its circle remains
  }
}
