// Enqueues a message. Run it with a queue: qlogd queue create mails
import { Client, QlogdError } from "qlogd";

const client = new Client(process.env["QLOGD_ADDR"] ?? "http://127.0.0.1:7070");
try {
  const { id } = await client.enqueue("mails", {
    payload: { to: "ada@example.com" },
    idempotency_key: "welcome-ada", // enqueued once, however often it is repeated
  });
  console.log(`enqueued ${id}`);
} catch (e) {
  if (e instanceof QlogdError && e.code === "queue_full") {
    console.error("come back later");
  } else {
    throw e;
  }
}
