// The service's metrics page (Prometheus text) as data.

const SAMPLE = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/** Every sample: `{name, labels, value}`. */
export function samples(text) {
  return text.split("\n").map((line) => SAMPLE.exec(line)).filter(Boolean).map(([, name, labels, value]) => ({
    name,
    labels: Object.fromEntries([...(labels || "").matchAll(LABEL)].map(([, key, said]) => [key, said])),
    value: Number(value),
  }));
}

/** A page of samples that can be asked. */
export class Page {
  constructor(text) {
    this.all = samples(text);
  }

  /** The samples of one name. */
  of(name) {
    return this.all.filter((sample) => sample.name === name);
  }

  /** Their sum, 0 for none. */
  sum(name) {
    return this.of(name).reduce((sum, { value }) => sum + value, 0);
  }

  /** Their sum for each value of a label. */
  by(name, label) {
    const sums = new Map();
    for (const { labels, value } of this.of(name)) sums.set(labels[label], (sums.get(labels[label]) || 0) + value);
    return sums;
  }

  /** A histogram's counts per bucket, with the upper edges, the one without an edge left out. */
  histogram(name) {
    const upto = this.of(`${name}_bucket`).filter(({ labels }) => labels.le !== "+Inf");
    const counts = upto.map(({ value }, i) => value - (i ? upto[i - 1].value : 0));
    return { edges: upto.map(({ labels }) => Number(labels.le)), counts };
  }

  mean(name) {
    return this.sum(`${name}_sum`) / Math.max(1, this.sum(`${name}_count`));
  }
}
