-- The outbox: a row is a message that the transaction which inserts it wants to be enqueued.
CREATE TABLE outbox (
  id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- Not made from id, which begins again in a database that is restored from a backup.
  idempotency_key uuid        NOT NULL DEFAULT gen_random_uuid(),
  queue           text        NOT NULL,
  key             text        NOT NULL DEFAULT '',
  kind            text        NOT NULL DEFAULT '',
  headers         json        NOT NULL DEFAULT '{}',
  payload         json        NOT NULL,
  -- Written by the relay.
  tried_at        timestamptz, -- before the message is sent for the first time
  error           text         -- why the server refuses this message for good
);

-- Wakes the relay, which polls otherwise. PostgreSQL lets transactions that notify commit one after
-- the other: leave the trigger out where thousands commit in a second.
CREATE FUNCTION outbox_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NOTIFY outbox;
  RETURN NULL;
END $$;
CREATE TRIGGER outbox_inserted AFTER INSERT ON outbox
  FOR EACH STATEMENT EXECUTE FUNCTION outbox_inserted();
