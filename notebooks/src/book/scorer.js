// How the book's search orders what it finds: lessons first, the reference last. Numbers are Sphinx's own
var Scorer = {
  score: ([page, , , , score]) =>
    page.startsWith("api/") ? score - 200 : /^notebooks\/[01]\d_/.test(page) ? score + 30 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
