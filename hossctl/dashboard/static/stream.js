// The connection to the dashboard: looks as they come, and whether what is on the screen is still so.

const SILENCE_MS = 6000; // the server has a word every two seconds
const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 5000;

export class Stream {
  /** `on.look(message)`, `on.away({why})`, `on.lost(retryMs)`, `on.ended()`: the viewer may look no more. */
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.retryMs = FIRST_RETRY_MS;
    // A browser keeps a page that was left, with its connections, of which it has six for one server.
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
    this.open();
  }

  open() {
    const source = (this.source = new EventSource(this.url));
    const heard = (handle) => (event) => {
      this.retryMs = FIRST_RETRY_MS;
      this.listen();
      handle(JSON.parse(event.data));
    };
    source.addEventListener("look", heard(this.on.look));
    source.addEventListener("away", heard(this.on.away));
    source.addEventListener("word", heard(() => {}));
    source.addEventListener("ended", () => {
      this.close();
      this.on.ended();
    });
    source.onerror = () => this.lose();
    this.listen();
  }

  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lose(), SILENCE_MS);
  }

  lose() {
    this.close(); // a new one begins with a whole look
    this.retry = setTimeout(() => this.open(), this.retryMs);
    this.on.lost(this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, LONGEST_RETRY_MS);
  }

  /** Until `open`. */
  close() {
    clearTimeout(this.silence);
    clearTimeout(this.retry);
    this.source.close();
  }
}
