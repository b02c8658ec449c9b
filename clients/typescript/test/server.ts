import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { type Client, type components, unwrap } from "../src/index.js";

const binary = process.env["QLOGD_BIN"];
if (!binary) {
  throw new Error("QLOGD_BIN names no program: make typescript-test builds it");
}

/** A node of the real program, that is a cluster of its own. */
export class Server {
  url = "";
  #raft = "127.0.0.1:0";
  #program: ChildProcess | undefined;

  private constructor(
    readonly dir: string,
    readonly flags: string[],
  ) {}

  /** Starts one for a test, and returns once it serves. */
  static async start(t: TestContext, flags: string[] = []): Promise<Server> {
    const server = new Server(mkdtempSync(join(tmpdir(), "qlogd-ts-")), flags);
    t.after(async () => {
      await server.kill9();
      rmSync(server.dir, { recursive: true });
    });
    await server.launch();
    return server;
  }

  /** Starts the program, at the same addresses as before. */
  async launch(): Promise<void> {
    const http = this.url ? new URL(this.url).host : "127.0.0.1:0";
    const args = ["serve", "--data-dir", join(this.dir, "data"), "--log-format", "json",
      "--http-addr", http, "--raft-addr", this.#raft, ...this.flags];
    const program = spawn(binary!, args, { stdio: ["ignore", "ignore", "pipe"] });
    this.#program = program;
    let log = "";
    const lines = createInterface(program.stderr!);
    for await (const line of lines) {
      log += line + "\n";
      const { msg, http, raft } = JSON.parse(line);
      if (msg === "serving") {
        this.url = `http://${http}`;
        this.#raft = raft;
        program.stderr!.resume();
        return;
      }
    }
    throw new Error(`the node does not serve:\n${log}`);
  }

  /** Kills the program, and returns once it is gone. */
  async kill9(): Promise<void> {
    const program = this.#program;
    if (program && program.exitCode === null && program.signalCode === null) {
      const gone = new Promise((resolve) => program.once("exit", resolve));
      program.kill("SIGKILL");
      await gone;
    }
  }
}

export type Event = components["schemas"]["Event"];

/** Follows the events of a queue, of these types, from the start of the log. */
export async function* follow(c: Client, queue: string, ...type: string[]): AsyncGenerator<Event> {
  const query = { from: "start", follow: true, queue, type };
  const headers = { Accept: "application/x-ndjson" };
  const init = { params: { query }, headers, parseAs: "stream" } as const;
  const body = await unwrap(c.api.GET("/v1/events", init));
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of body as import("node:stream/web").ReadableStream<Uint8Array>) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop()!;
    for (const line of lines.filter((l) => l !== "")) { // an empty one is a heartbeat
      yield JSON.parse(line);
    }
  }
}

/** Waits for n events of a queue, of these types. */
export async function seen(
  c: Client,
  n: number,
  queue: string,
  ...type: string[]
): Promise<Event[]> {
  const all: Event[] = [];
  for await (const e of follow(c, queue, ...type)) {
    if (all.push(e) === n) {
      break;
    }
  }
  return all;
}

/** Creates a queue. */
export async function queue(
  c: Client,
  name: string,
  policy: components["schemas"]["PolicyUpdate"] = {},
): Promise<string> {
  const params = { path: { queue: name } };
  return (await unwrap(c.api.PUT("/v1/queues/{queue}", { params, body: policy }))).name;
}

/** Stops a worker, at the latest at the end of the test. */
export function stopper(t: TestContext): AbortController {
  const stop = new AbortController();
  t.after(() => stop.abort());
  return stop;
}

/** A promise, and what resolves it. */
export function signal(): { promise: Promise<void>; resolve: () => void } {
  let resolve = () => {};
  const promise = new Promise<void>((r) => (resolve = r));
  return { promise, resolve };
}
