import { setTimeout as delay } from "node:timers/promises";

/** Limits of a shared request. */
const maxItems = 1000;
const maxSize = 1 << 20;

/** How long a request may take before the next one no longer waits for it, in ms. */
const slowAfter = 250;

interface Ticket<I, O> {
  item: I;
  size: number;
  resolve: (answer: O) => void;
  reject: (e: unknown) => void;
}

/** Gathers items that are added one by one into shared requests. An item leaves at once if no
 * request is in flight; else it waits for the answer to that request, unless it is slow. */
export class Lane<I, O> {
  #waiting: Ticket<I, O>[] = [];
  #sending = false;

  /** send answers the items in their order. */
  constructor(readonly send: (items: I[]) => Promise<O[]>) {}

  add(item: I, size: number): Promise<O> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ item, size, resolve, reject });
      if (!this.#sending) {
        void this.#drain();
      }
    });
  }

  async #drain(): Promise<void> {
    this.#sending = true;
    while (this.#waiting.length > 0) {
      await new Promise(setImmediate); // what is added in this turn of the event loop goes along
      const answered = this.#request(this.#take());
      await Promise.race([answered, delay(slowAfter, undefined, { ref: false })]);
    }
    this.#sending = false;
  }

  #take(): Ticket<I, O>[] {
    let n = 0;
    for (let size = 0; n < Math.min(this.#waiting.length, maxItems); n++) {
      size += this.#waiting[n]!.size;
      if (size > maxSize && n > 0) {
        break;
      }
    }
    return this.#waiting.splice(0, n);
  }

  async #request(tickets: Ticket<I, O>[]): Promise<void> {
    try {
      const answers = await this.send(tickets.map((t) => t.item));
      tickets.forEach((t, i) => t.resolve(answers[i]!));
    } catch (e) {
      tickets.forEach((t) => t.reject(e));
    }
  }
}
