// @ts-check
/**
 * The pictures: the star, the matrices, the curves, and the angle of a pair. Each function draws one of them.
 *
 * @typedef {{name?: string, values: (number | null)[], look: string}} Series  one value per round; without a name, no words
 * @typedef {{round: number, value: number, words: string, look: string}} Ring  around a point of a curve
 */

const REACH = 104; // of an arrow of length 1, in the star's units
const EDGE = 13.5; // of the picture at an arrow's tip
const BORDER = 96; // as far as such a picture goes from the centre, to each side

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

/** Return an image of 8 × 8 grey values around (0, 0) as paths, one for each of four shades. @param {ArrayLike<number>} image */
function digitPaths(image) {
  const pixel = (EDGE - 1) / 8;
  return [1, 2, 3, 4].map((shade) => {
    const squares = Array.from(image, (value, p) => (Math.ceil(value * 4) === shade
      ? `M${((p % 8) - 4) * pixel},${(Math.floor(p / 8) - 4) * pixel}h${pixel}v${pixel}h${-pixel}z` : ""));
    return tag("path", { d: squares.join(""), "fill-opacity": shade / 4 });
  }).join("");
}

/**
 * Draw an arrow for each client, with one of its digits at the tip. Until `moveStar`, all are at the centre.
 * @param {{name: string, digit: ArrayLike<number>}[]} clients
 */
export function makeStar(clients) {
  const shafts = clients.map((_, i) => tag("path", { "data-client": i, class: "shaft" })).join("");
  const badges = clients.map(({ name, digit }, i) => tag("g", { "data-client": i, class: "badge" },
    tag("title", {}, name) + tag("rect", { x: -EDGE / 2, y: -EDGE / 2, width: EDGE, height: EDGE, rx: 1.8 }) + digitPaths(digit)));
  element("star").innerHTML = `${element("star").querySelector("title").outerHTML}${tag("circle", { r: REACH / 2, class: "ring" })}${shafts}${badges.join("")}` +
    tag("circle", { r: 1.6, class: "centre" });
  places = clients.map(() => [0, 0]);
}

/** @type {number[][]} Where the pictures at the tips are */
let places = [];

/**
 * Move the arrows, and colour them by cluster. Pictures that would lie on each other move apart.
 * @param {number[][]} points @param {number[] | null} found @param {number} turns  how often pictures may move
 */
export function moveStar(points, found, turns) {
  const tips = points.map(([x, y]) => [x * REACH, -y * REACH]);
  const homes = tips.map(([u, v], i) => {
    const length = Math.hypot(u, v) || 1, beyond = EDGE * 0.62;
    return [u + (u / length) * beyond + Math.cos(i) * 1e-3, v + (v / length) * beyond + Math.sin(i) * 1e-3];
  });
  for (let turn = 0; turn < turns; turn++) spread(homes, turn < turns / 2 ? 0.2 : 0);
  const svg = element("star");
  svg.querySelectorAll(".shaft").forEach((/** @type {Element} */ shaft, /** @type {number} */ i) => {
    const [u, v] = tips[i], [x, y] = places[i];
    shaft.setAttribute("d", `M0,0L${u.toFixed(2)},${v.toFixed(2)}L${x.toFixed(2)},${y.toFixed(2)}`);
    shaft.setAttribute("stroke", colour(found?.[i]));
  });
  svg.querySelectorAll(".badge").forEach((/** @type {Element} */ badge, /** @type {number} */ i) => {
    badge.setAttribute("transform", `translate(${places[i].map((at) => at.toFixed(2)).join(" ")})`);
    badge.setAttribute("stroke", colour(found?.[i]));
  });
}

/** Draw the pictures a little towards their homes, and those that lie on each other apart. @param {number[][]} homes @param {number} pull */
function spread(homes, pull) {
  const room = EDGE + 1;
  places.forEach((place, i) => homes[i].forEach((home, axis) => { place[axis] += pull * (home - place[axis]); }));
  places.forEach((one, i) => {
    for (const other of places.slice(i + 1)) {
      const [dx, dy] = [other[0] - one[0] || 1e-4, other[1] - one[1] || 1e-4], distance = Math.hypot(dx, dy);
      const push = Math.max(0, room - Math.max(Math.abs(dx), Math.abs(dy))) / 2 / distance;
      [one[0], one[1], other[0], other[1]] = [one[0] - dx * push, one[1] - dy * push, other[0] + dx * push, other[1] + dy * push];
    }
  });
  for (const place of places) for (const axis of [0, 1]) place[axis] = Math.min(BORDER, Math.max(-BORDER, place[axis]));
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

/** The shade of a distance, from 0 for a right angle and more to 1 for the same direction. @param {number} distance */
const shade = (distance) => Math.max(0, 1 - distance) ** 1.3;

/**
 * Paint a matrix of distances, solid where two clients agree, between strips of the clusters.
 * @param {HTMLElement} matrix  its block, with three canvases @param {number[][]} gamma @param {number[] | null} found
 */
export function drawGamma(matrix, gamma, found) {
  const m = gamma.length, strip = (/** @type {number} */ i) => /** @type {[string, number]} */ (found ? [`--c${found[i] % 8}`, 1] : ["--line", 1]);
  const [top, side, cells] = /** @type {HTMLCanvasElement[]} */ ([...matrix.querySelectorAll("canvas")]);
  paint(cells, m, m, (x, y) => ["--ink", shade(gamma[y][x])]);
  paint(top, m, 1, strip);
  paint(side, 1, m, (_, y) => strip(y));
}

/** Mark the rows and columns of clients, and the cells of a pair. @param {Element} over  above the cells @param {number} m @param {number[]} lit */
export function drawLit(over, m, lit) {
  const bands = lit.map((i) => tag("rect", { x: 0, y: i, width: m, height: 1, class: "band" }) + tag("rect", { x: i, y: 0, width: 1, height: m, class: "band" }));
  const [i, j] = lit, cells = lit.length < 2 ? [] : [[i, j], [j, i]];
  over.setAttribute("viewBox", `0 0 ${m} ${m}`);
  over.innerHTML = bands.join("") + cells.map(([x, y]) => tag("rect", { x, y, width: 1, height: 1, class: "cell" })).join("");
}

/** Draw two updates at their true angle, and the cell that it becomes. @param {number} distance @param {string[]} colours @param {ArrayLike<number>[]} digits */
export function anglePicture(distance, colours, digits) {
  const angle = Math.acos(1 - distance), [cos, sin] = [Math.cos(angle), -Math.sin(angle)], length = 34;
  const ray = (/** @type {number} */ u, /** @type {number} */ v, /** @type {number} */ k) =>
    tag("path", { d: `M0,0L${u * length},${v * length}`, stroke: colours[k], class: "shaft" }) +
    tag("g", { transform: `translate(${u * (length + 8)} ${v * (length + 8)})`, stroke: colours[k], class: "badge" },
      tag("rect", { x: -EDGE / 2, y: -EDGE / 2, width: EDGE, height: EDGE, rx: 1.8 }) + digitPaths(digits[k]));
  const arc = `M14,0A14,14 0 0 0 ${14 * cos},${14 * sin}`;
  return `<svg viewBox="-52 -52 172 62" aria-hidden="true">` + tag("path", { d: arc, class: "arc" }) + ray(1, 0, 0) + ray(cos, sin, 1) +
    tag("text", { x: 66, y: -18, class: "middle" }, "→") +
    tag("rect", { x: 82, y: -34, width: 26, height: 26, class: "result", "fill-opacity": shade(distance) }) + "</svg>";
}

/**
 * Draw curves over rounds, each with its name at its end.
 * @param {SVGSVGElement} svg @param {string} title @param {Series[]} series @param {number} rounds  on the axis
 * @param {[number, number]} range  of the values @param {(value: number) => string} words
 * @param {{shown: number, rings?: Ring[]}} marks
 */
export function drawCurves(svg, title, series, rounds, range, words, { shown, rings = [] }) {
  const [, , width, height] = svg.getAttribute("viewBox")?.split(" ").map(Number) ?? [];
  const [left, right, top, bottom] = [50, width - 120, 10, height - 22]; // with room for the names at the ends
  const x = (/** @type {number} */ round) => left + ((round - 1) / (rounds - 1)) * (right - left);
  const y = (/** @type {number} */ value) => bottom - ((value - range[0]) / (range[1] - range[0])) * (bottom - top);
  const text = (/** @type {number} */ u, /** @type {number} */ v, /** @type {string} */ inside, /** @type {string} */ look) =>
    tag("text", { x: u.toFixed(1), y: v.toFixed(1), class: look }, inside);
  const ticks = [0, 0.5, 1].map((share) => range[0] + share * (range[1] - range[0]));
  const parts = ticks.map((value) =>
    tag("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }) + text(left - 6, y(value) + 4, words(value), "tick end"));
  const every = rounds <= 12 ? 1 : 5 * Math.ceil(rounds / 60);
  for (let round = every; round <= rounds; round += every) parts.push(text(x(round), height - 6, `${round}`, "tick middle"));
  if (shown <= rounds) parts.push(tag("line", { x1: x(shown), x2: x(shown), y1: top, y2: bottom, class: "shown" }));
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

/** Move the words of each ring beside it, where they lie on no other words. @param {SVGSVGElement} svg */
function placeRings(svg) {
  const texts = /** @type {SVGTextElement[]} */ ([...svg.querySelectorAll("text.name")]);
  for (const ring of texts.filter((text) => text.classList.contains("ring"))) {
    const others = texts.filter((text) => text !== ring).map((text) => text.getBBox());
    const [u, v] = ["x", "y"].map((name) => Number(ring.getAttribute(name))), { width } = ring.getBBox();
    // The curve falls before the trigger and rises after it, so that below on the right it is free
    const beside = [[10, 20], [-width - 10, -10], [10, -12], [-width - 10, 17], [-width / 2, 24], [-width / 2, -14], [10, 4], [-width - 10, 4]];
    const free = beside.find(([along, down]) => {
      ring.setAttribute("x", `${u + along}`);
      ring.setAttribute("y", `${v + down}`);
      const box = ring.getBBox();
      return box.x >= 0 && box.x + box.width <= svg.viewBox.baseVal.width && others.every((other) => box.x > other.x + other.width || other.x > box.x + box.width || box.y > other.y + other.height || other.y > box.y + box.height);
    });
    if (!free) ring.remove(); // its circle remains
  }
}
