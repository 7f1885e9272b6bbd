// What a program with the official JavaScript client does: card, stream, answer, list, cancel. Prints JSON lines.
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";

const [url, token, binding, ...texts] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));

const fetchImpl = (input, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${token}`);
  return fetch(input, { ...init, headers });
};
const Transport = binding === "JSONRPC" ? JsonRpcTransportFactory : RestTransportFactory;
const factory = new ClientFactory({
  transports: [new Transport({ fetchImpl })],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
// The whole address: the client would look for the card at the root of the host otherwise.
const client = await factory.createFromUrl(`${url}/.well-known/agent-card.json`, "");

const request = (text, taskId) => ({
  tenant: "",
  message: {
    messageId: crypto.randomUUID(),
    contextId: "",
    taskId,
    role: 1,
    parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});

let taskId = "";
for (const text of texts) {
  for await (const event of client.sendMessageStream(request(text, taskId))) {
    const { $case: kind, value } = event.payload;
    if (kind === "task") taskId = value.id;
    say({ kind, state: value.status?.state, text: value.artifact?.parts?.[0]?.content?.value });
  }
}
const all = { tenant: "", contextId: "", status: 0, pageSize: 10, pageToken: "", historyLength: 0, includeArtifacts: true };
const listed = await client.listTasks({ ...all, statusTimestampAfter: undefined });
say({ listed: listed.tasks.map((task) => task.id), id: taskId });
try {
  const canceled = await client.cancelTask({ tenant: "", id: taskId, metadata: undefined });
  say({ canceled: canceled.status.state });
} catch (error) {
  say({ refused: error.constructor.name });
}
