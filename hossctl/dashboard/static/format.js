// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => (number >= 1e6 ? short.format(number) : whole.format(number));
export const percent = (share) => (share > 0 && share < 0.001 ? "<0.1 %" : `${(share * 100).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${tidy(seconds * 1e3)} ms`;
  if (seconds < 120) return `${tidy(seconds)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(0)} h`;
}

const tidy = (number) => number.toFixed(number < 10 && number % 1 > 0.04 ? 1 : 0);

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const moment = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
/** A moment of today by its time alone. */
export const when = (ms) => (!ms ? "–" : new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : moment(ms));
