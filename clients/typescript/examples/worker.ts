// Works on a queue until SIGINT or SIGTERM.
import { Client, DeadLetter, type Message, Worker } from "qlogd";

interface Mail {
  to: string;
}

async function send(m: Message<Mail>, { signal }: { signal: AbortSignal }): Promise<void> {
  if (!m.payload.to.includes("@")) {
    throw new DeadLetter(`${m.payload.to} is no address`); // another try would not help
  }
  signal.throwIfAborted(); // the lease is lost, or the worker's grace is over
  console.log(`sent to ${m.payload.to}, attempt ${m.attempt}`); // any error is another try
}

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => stop.abort());
}
const client = new Client(process.env["QLOGD_ADDR"] ?? "http://127.0.0.1:7070");
await new Worker<Mail>(client, "mails", send, { concurrency: 8 }).run(stop.signal);
