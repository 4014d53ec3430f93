import { ari, exact, faults, larger, neighbourhoods, workingRange } from "./maths.js";
import { choice, colour, draggable, drawn, explorer, line, slider, svg, tag, turnedSeven, words } from "./draw.js";

const [LEAST, MOST] = [-0.02, 0.36]; // the ends of the axis
const SCENES = [
  { name: "poisoned", label: "Clean, poisoned, turned", signs: ["clean", "poisoned", "turned"] },
  { name: "quarter-turn", label: "0° and 90°", signs: ["turned by 0°", "turned by 90°"] },
  { name: "four", label: "Four turns", signs: ["0°", "90°", "180°", "270°"] },
];

/** EMD-CFL: which clients are joined at a threshold of the score. */
export function mount(element, data) {
  const { epsilon, scenes } = data.emd_cfl;
  const all = SCENES.map((scene) => {
    const { truth, scores } = scenes[scene.name];
    const pair = larger(scores.map((row) => row.map((score) => score * data.unit)));
    return { ...scene, truth, pair, right: workingRange(pair, truth) };
  });
  const { controls, picture, say } = explorer(element, {
    question: "How strange may another client’s images look?",
    answer: `A client’s model looks at another client’s images, and a score says how strange they look to it. EMD-CFL joins two
      clients if both scores are below ε. The right ε lies between the scores within groups and those between groups, if
      there is a gap.`,
    key: `Each circle is a client; the 7 in it shows how its group’s images look, and a circle has a colour if its cluster is exactly one
      group. Lines join clients who agree; thick ones join two groups. Below, each dot is a pair of clients, at the larger of its two scores.`,
    lesson: "05_emd_cfl",
    link: "Lesson 05: where the scores come from.",
  });
  const redraw = () => again();
  const scene = choice(controls, "Which clients", SCENES.map(({ label }) => label), redraw);
  const eps = slider(controls, { label: "Threshold ε", min: 0, max: 0.3, step: 0.002, value: epsilon, show: (v) => v.toFixed(3) }, redraw);
  let scale = { left: 0, span: 1 };
  draggable(picture, (_, x) => {
    eps.value = Math.min(0.3, Math.max(0, LEAST + ((x - scale.left) / scale.span) * (MOST - LEAST)));
  });
  const again = drawn(picture, (width) => {
    const { truth, pair, right, signs } = all[scene.value];
    const found = neighbourhoods(pair, eps.value);
    const groups = exact(truth, found);
    const count = Math.max(...found) + 1;
    const score = ari(truth, found);
    const [low, high] = right;
    const range = low < high
      ? `Every ε above ${(Math.ceil(1000 * low - 1e-6) / 1000).toFixed(3)} and up to ${(Math.floor(1000 * high + 1e-6) / 1000).toFixed(3)} finds the groups.`
      : `No ε finds the groups: the largest score within a group is ${low.toFixed(3)}, and the smallest between two is ${high.toFixed(3)}.`;
    const { merged, splintered } = faults(truth, found);
    const verdict = merged && splintered ? "Some groups merge while others are in splinters."
      : merged ? "Groups merge." : splintered ? "Groups are in splinters." : "These are the groups.";
    say(`ε = ${eps.value.toFixed(3)}: <b>${count} cluster${count > 1 ? "s" : ""}</b>, ARI ${score.toFixed(2)}. ${verdict} ${range}`);
    const radius = Math.min(118, width / 2 - 60);
    const [middle, tall] = [width / 2, 2 * radius + 74];
    const gap = 0.55; // between groups, in places on the circle
    const places = truth.length + gap * signs.length;
    const at = truth.map((group, i) => {
      const angle = (2 * Math.PI * (i + gap * group + (1 + gap) / 2)) / places - Math.PI / 2;
      return { x: middle + radius * Math.cos(angle), y: radius + 36 + radius * Math.sin(angle), angle };
    });
    return svg(width, tall + 128, `12 clients in ${count} clusters, and the scores of all pairs.`,
      lines(pair, truth, at) + clients(truth, groups, at) + names(truth, signs, at, radius) + strip(pair, truth, right, width, tall));
  });

  function lines(pair, truth, at) {
    return pair.flatMap((row, i) => row.map((score, j) => (i < j && score < eps.value
      ? line(at[i].x, at[i].y, at[j].x, at[j].y, truth[i] === truth[j] ? "faint" : "wrong") : ""))).join("");
  }
  function clients(truth, groups, at) {
    return at.map(({ x, y }, i) => tag("circle", { cx: x, cy: y, r: 15, class: `client ${colour(groups[i])}` }) + seven(truth[i], x, y)).join("");
  }
  function seven(group, x, y) {
    const kind = all[scene.value].signs[group];
    const ground = kind === "poisoned" ? tag("rect", { x: x - 8, y: y - 9, width: 16, height: 18, class: "ground" }) : "";
    const turns = scene.value ? group : Number(kind === "turned");
    return ground + turnedSeven(x, y, turns);
  }
  function names(truth, signs, at, radius) {
    return signs.map((name, group) => {
      const mine = at.filter((_, i) => truth[i] === group);
      const angle = (mine[0].angle + mine[mine.length - 1].angle) / 2;
      const [x, y] = [Math.cos(angle), Math.sin(angle)];
      const side = Math.abs(x) < 0.3 ? "middle" : x > 0 ? "start" : "end";
      return words(picture.clientWidth / 2 + (radius + 24) * x, radius + 40 + (radius + 26) * y, name, `${side} muted`);
    }).join("");
  }
  function strip(pair, truth, right, width, top) {
    const [low, high] = right;
    const narrow = width < 560;
    const left = narrow ? 8 : 116;
    scale = { left, span: width - left - 16 };
    const x = (score) => left + (scale.span * (Math.min(Math.max(score, LEAST), MOST) - LEAST)) / (MOST - LEAST);
    const rows = [["within a group", true, top + 34], ["between groups", false, top + 68]];
    const dots = rows.map(([label, same, y]) =>
      (narrow ? words(width - 16, y - 12, label, "end muted") : words(left - 12, y + 4, label, "end muted")) + line(left, y, width - 16, y, "axis") +
      pair.flatMap((row, i) => row.map((score, j) => (i < j && (truth[i] === truth[j]) === same
        ? tag("circle", { cx: x(score), cy: y, r: 4, class: score < eps.value ? "pair joined" : "pair" }) : ""))).join("")).join("");
    const band = low < high
      ? tag("rect", { x: x(low), y: top + 14, width: x(high) - x(low), height: 66, class: "band" }) +
        words((x(low) + x(high)) / 2, top + 10, "right", "middle accent") : "";
    const ticks = [0, 0.1, 0.2, 0.3].map((at) => words(x(at), top + 98, at, "middle muted")).join("");
    const at = x(eps.value);
    return band + dots + ticks + words(width - 16, top + 118, "score: how strange the images look", "end muted") +
      line(at, top + 14, at, top + 82, "knife") + tag("circle", { cx: at, cy: top + 84, r: 7, class: "grip" }) +
      words(at, top + 118, "ε", "middle accent strong") +
      tag("rect", { x: at - 18, y: top, width: 36, height: 120, class: "handle sideways", "data-handle": "eps" });
  }
}
