import { area } from "./maths.js";
import { drawn, explorer, line, path, slider, svg, tag, words } from "./draw.js";

const SIDE = 28;
const NAMES = {
  GradCAM: ["GradCAM", "asks the model"],
  noise: ["Noise", "random numbers"],
  brightness: ["Brightness", "the image itself"],
};

/** Insertion curves of three maps of one image, drawn step by step. */
export function mount(element, data) {
  const { step, image, maps, class: digit } = data.insertion;
  const all = maps.map(({ name, order, heat, curve }) => ({
    name,
    order,
    heat: pictureOf(heat.map((value) => [0.35 + 0.65 * clamp(value / 99), clamp(value / 99)]), "heat"),
    curve: curve.map((value) => value * data.unit),
  }));
  const steps = all[0].curve.length - 1;
  const { controls, picture, say } = explorer(element, {
    question: "Does a good score mean a good explanation?",
    answer: `A map says which pixels mattered to a model. To score it, start from black, put the pixels back in the map’s order, and
      watch the model’s probability of the digit. The score is the area under this curve. But even a map of noise
      gets a large area, and plain brightness the largest.`,
    key: `From left to right: a map (the brighter, the more important), the pixels that are back, and the probability of the right
      digit, with the area so far.`,
    lesson: "07_explaining_cluster_models",
    link: "Lesson 07: what the score measures.",
  });
  const redraw = () => again();
  const pixels = (at) => Math.min(at * step, SIDE * SIDE);
  const shown = slider(controls, { label: "Pixels that are back", min: 0, max: steps, step: 1, value: 4, show: (at) => `${pixels(at)} of 784` }, redraw);
  const again = drawn(picture, (width) => {
    const at = shown.value;
    const areas = all.map(({ curve }) => area(curve, at + 1).toFixed(2));
    say(`With ${pixels(at)} of 784 pixels back, the model’s probability of a ${digit} is ` +
      all.map(({ name, curve }) => `${curve[at].toFixed(2)} in the order of ${NAMES[name][0].replace(/^[NB]/, (c) => c.toLowerCase())}`).join(", ") +
      `. ${at === steps ? "Areas" : "Areas so far"}: ${areas.join(", ")}.`);
    const narrow = width < 560;
    const size = narrow ? 84 : 112;
    const tall = size + 34;
    return svg(width, 3 * tall + 26, `Three curves of probability, up to ${pixels(at)} pixels.`,
      all.map((map, k) => row(map, at, areas[k], k * tall, size, width)).join("") + foot(3 * tall + 12, size, width));
  });

  function row({ name, order, heat, curve }, at, score, y0, size, width) {
    const back = new Set(order.slice(0, pixels(at)));
    const inserted = pictureOf(image.map((value, p) => (back.has(p) ? [value / 255, value / 255] : [0, 0])), "ink");
    const [left, top] = [2 * size + 46, y0 + 26];
    const x = (k) => left + ((width - left - 10) * k) / steps;
    const y = (p) => top + size * (1 - p);
    const [title, about] = NAMES[name];
    const points = curve.map((p, k) => [x(k), y(p)]);
    const so = points.slice(0, at + 1);
    const frame = (px) => tag("rect", { x: px, y: top, width: size, height: size, class: "frame" });
    const photo = (px, href) => tag("image", { x: px, y: top, width: size, height: size, href, class: "pixels" });
    return words(0, y0 + 17, `<tspan class="strong">${title}</tspan> <tspan class="muted">${about}</tspan>`) +
      photo(0, heat) + frame(0) + photo(size + 10, inserted) + frame(size + 10) +
      [0, 1].map((p) => words(left - 8, y(p) + 4, p, "end muted") + line(left, y(p), x(steps), y(p), "axis")).join("") +
      path([[x(0), y(0)], ...so, [x(at), y(0)]], "fill") + path(points, "curve rest") + path(so, "curve so") +
      tag("circle", { cx: x(at), cy: y(curve[at]), r: 5, class: "grip" }) +
      words(x(steps) - 4, y(0) - 10, `area ${score}`, "end strong halo");
  }
  function foot(y, size, width) {
    const left = 2 * size + 46;
    return words(size / 2, y, "map", "middle muted") + words(1.5 * size + 10, y, "put back", "middle muted") +
      words(left, y, "black", "start muted") + words(width - 10, y, "all pixels", "end muted") +
      (width < 560 ? "" : words((left + width - 10) / 2, y, `probability of a ${digit}, as pixels come back`, "middle muted"));
  }
}

function clamp(value) {
  return Math.min(1, Math.max(0, value));
}

/** Paint pixels [784] of two brightnesses (of violet and of its white) as a picture's address. */
function pictureOf(pixels, kind) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const painted = context.createImageData(SIDE, SIDE);
  pixels.forEach(([strength, white], p) => {
    const light = 255 * white;
    const colour = kind === "ink" ? [light, light, light] : [40 + 0.84 * light * strength, 20 + 0.9 * light * white, 90 + 165 * white * strength];
    painted.data.set([...colour, 255], 4 * p);
  });
  context.putImageData(painted, 0, 0);
  return canvas.toDataURL();
}
