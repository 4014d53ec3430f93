import { firstSplit } from "./maths.js";
import { draggable, drawn, explorer, line, path, slider, svg, tag, turnedSeven, words } from "./draw.js";

const [TOP, HEIGHT, LEFT, LONGEST] = [26, 210, 40, 2.2];

/** Sattler's rule: two norms over the rounds, and two thresholds that can be dragged. */
export function mount(element, data) {
  const { truth, sattler } = data.older_rules;
  const rates = sattler.rates.map(({ lr, norms, halves }) =>
    ({ lr, halves, norms: norms.map((both) => both.map((norm) => norm * data.unit)) }));
  const rounds = rates[0].norms.length;
  const { controls, picture, say } = explorer(element, {
    question: "When is one model no longer enough?",
    answer: `Sattler’s rule looks at two lengths. If the mean of all updates is short, but a single update is still long, then clients
      pull in different directions, and the server splits them in two. But how short is short? Clients that take smaller steps
      need other thresholds.`,
    key: `The same clients twice, with a larger and a smaller learning rate (the size of a client’s steps). In shaded rounds both conditions
      hold. Each 7 is a client, turned as its group turns its
      digits, and each bar a cluster.`,
    lesson: "04_sattler_and_briggs",
    link: "Lesson 04: Sattler’s two conditions.",
  });
  const redraw = () => again();
  const fixed = (value) => value.toFixed(2);
  const knobs = { min: 0.02, max: 2.1, step: 0.01, show: fixed };
  const eps1 = slider(controls, { label: "ε₁: the mean must be shorter than", value: sattler.eps1, ...knobs }, redraw);
  const eps2 = slider(controls, { label: "ε₂: one must be longer than", value: sattler.eps2, ...knobs }, redraw);
  draggable(picture, (handle, _, to) => {
    const y0 = Number(handle.slice(4));
    const length = LONGEST * (1 - (to - y0 - TOP) / HEIGHT);
    (handle.startsWith("eps1") ? eps1 : eps2).value = Math.min(2.1, Math.max(0.02, length));
  });
  const again = drawn(picture, (width) => {
    const narrow = width < 560;
    const each = narrow ? width : (width - 28) / 2;
    const tall = TOP + HEIGHT + 96;
    const splits = rates.map(({ norms }) => firstSplit(norms, eps1.value, eps2.value));
    const outcome = (k) => (splits[k] < 0 ? "it never splits" : `it first splits in <b>round ${splits[k] + 1}</b>`);
    say(`With learning rate ${rates[0].lr} ${outcome(0)}; with ${rates[1].lr} ${outcome(1)}.`);
    return svg(width, narrow ? 2 * tall + 20 : tall, "The two lengths over 20 rounds, for two learning rates, with both thresholds.",
      rates.map((rate, k) => panel(rate, splits[k], narrow ? 0 : k * (each + 28), narrow ? k * (tall + 20) : 0, each)).join(""));
  });

  function panel({ lr, norms, halves }, split, x0, y0, width) {
    const x = (t) => LEFT + ((width - LEFT - 8) * (t + 0.5)) / rounds;
    const y = (length) => TOP + HEIGHT * (1 - length / LONGEST);
    const band = (x(1) - x(0)) / 2;
    const shaded = norms.map(([mean, longest], t) => (mean < eps1.value && longest > eps2.value
      ? tag("rect", { x: x(t) - band, y: TOP, width: 2 * band, height: HEIGHT, class: t === split ? "band now" : "band" }) : ""));
    const ticks = [0, 1, 2].map((at) => words(LEFT - 8, y(at) + 4, at, "end muted") + line(LEFT, y(at), width - 8, y(at), "axis"));
    const curve = (which, looks) => path(norms.map((both, t) => [x(t), y(both[which])]), `curve ${looks}`) +
      norms.map((both, t) => tag("circle", { cx: x(t), cy: y(both[which]), r: 2.5, class: `dot ${looks}` })).join("");
    const near = (which) => norms.slice(10, 15).map((both) => y(both[which]));
    const below = Math.max(...near(0)) + 19;
    const meanLabel = below < y(0) - 4 ? below : Math.min(...near(0)) - 6;
    const lower = eps1.value < eps2.value ? "ε₁" : "ε₂";
    const close = Math.abs(eps1.value - eps2.value) < 0.18;
    const threshold = (name, value, label) =>
      line(LEFT, y(value), width - 8, y(value), `knife ${name}`) +
      tag("circle", { cx: LEFT, cy: y(value), r: 7, class: "grip" }) +
      words(width - 8, y(value) + (close && label === lower ? 15 : -6), `${label} ${fixed(value)}`, "end accent strong halo") +
      tag("rect", { x: LEFT - 14, y: y(value) - 12, width: width - LEFT, height: 24, class: "handle", "data-handle": name + y0 });
    return tag("g", { transform: `translate(${x0} ${y0})` }, [
      words(0, 14, `learning rate ${lr}`, "start strong"), shaded.join(""), ticks.join(""),
      curve(1, "long"), curve(0, "short"), words(x(12), Math.min(...near(1)) - 9, "longest update", "middle halo"), words(x(12), meanLabel, "mean update", "middle halo"),
      threshold("eps1", eps1.value, "ε₁"), threshold("eps2", eps2.value, "ε₂"),
      [1, 5, 10, 15, 20].map((t) => words(x(t - 1), TOP + HEIGHT + 17, t === 1 ? "round 1" : t, "middle muted")).join(""),
      sides(halves[split], split, width),
    ].join(""));
  }
  function sides(half, split, width) {
    const at = TOP + HEIGHT + 48;
    const step = Math.min(18, (width - LEFT - 20) / truth.length);
    let x = LEFT;
    const clusters = (half ? ["0", "1"] : [undefined]).map((side) => {
      const members = truth.filter((_, i) => half?.[i] === side);
      const from = x;
      const signs = members.map((group) => turnedSeven((x += step) - step / 2, at + 20, group));
      x += 12;
      return signs.join("") + line(from, at + 38, x - 12, at + 38, "found grey");
    });
    return words(LEFT, at, half ? `The two halves of round ${split + 1}` : "One cluster, to the end", "start muted") + clusters.join("");
  }
}
