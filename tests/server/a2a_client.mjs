// One action of a program with the official JavaScript client: send, get, list, subscribe or cancel. Prints JSON lines.
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";

const [url, token, binding, action, text, task = ""] = process.argv.slice(2);
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

const request = (words, taskId) => ({
  tenant: "",
  message: {
    messageId: crypto.randomUUID(),
    contextId: "",
    taskId,
    role: 1,
    parts: [{ content: { $case: "text", value: words }, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});
const sayTask = (found) =>
  say({
    id: found.id,
    state: found.status.state,
    asked: found.status.message?.parts?.[0]?.content?.value,
    text: found.artifacts?.[0]?.parts?.[0]?.content?.value,
  });
const sayEvents = async (events) => {
  for await (const { payload } of events) {
    const { $case: kind, value } = payload;
    say({ kind, id: value.id ?? value.taskId, state: value.status?.state, text: value.artifact?.parts?.[0]?.content?.value });
  }
};
const all = { tenant: "", contextId: "", status: 0, pageSize: 10, pageToken: "", historyLength: 0, includeArtifacts: true };
const actions = {
  send: () => sayEvents(client.sendMessageStream(request(text, task))),
  subscribe: () => sayEvents(client.resubscribeTask({ tenant: "", id: text })),
  get: async () => sayTask(await client.getTask({ tenant: "", id: text, historyLength: 0 })),
  list: async () => (await client.listTasks({ ...all, statusTimestampAfter: undefined })).tasks.forEach(sayTask),
  cancel: async () => sayTask(await client.cancelTask({ tenant: "", id: text, metadata: undefined })),
};
try {
  await actions[action]();
} catch (error) {
  say({ refused: error.constructor.name, message: String(error.message) });
}
