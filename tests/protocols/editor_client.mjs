// An editor on the official TypeScript SDK: prompts, permissions answered by an option, prints what it saw.
// The option "kill" kills the agent at the dialog, "cancel" cancels the turn there. LOAD names a session to load.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [command, cwd, option, ...prompts] = process.argv.slice(2);
const agent = spawn(command, ["acp"], { cwd, stdio: ["pipe", "pipe", "inherit"] });
const buffers = JSON.parse(process.env.BUFFERS || "{}"); // by path, not saved
const seen = { updates: [], permissions: [], stops: [], forms: 0 };

let peer, isDone;
let said = "";
const done = new Promise((resolve) => (isDone = resolve));

const { agent: to, client: from } = acp.methods;
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const editor = acp
  .client({ name: "editor" })
  .onRequest(from.session.requestPermission, async ({ params }) => {
    seen.permissions.push(params.toolCall.content);
    if (option === "kill") {
      agent.kill("SIGKILL");
      console.log(JSON.stringify({ session: params.sessionId }));
      process.exit(0);
    }
    if (option === "cancel") {
      await peer.notify(to.session.cancel, { sessionId: params.sessionId });
      return { outcome: { outcome: "cancelled" } };
    }
    return { outcome: { outcome: "selected", optionId: option } };
  })
  .onRequest(from.elicitation.create, () => {
    seen.forms += 1;
    return { action: "accept", content: { colour: "blue" } };
  })
  .onRequest(from.fs.readTextFile, ({ params }) => ({ content: buffers[params.path] ?? readFileSync(params.path, "utf-8") }))
  .onRequest(from.fs.writeTextFile, ({ params }) => {
    writeFileSync(params.path, params.content);
    delete buffers[params.path];
    return {};
  })
  .onNotification(from.session.update, ({ params }) => {
    seen.updates.push(params.update);
    said += params.update.sessionUpdate === "agent_message_chunk" ? params.update.content.text : "";
    if (said.includes("All done.")) isDone();
  });

await editor.connectWith(stream, async (ctx) => {
  const greeting = await ctx.request(to.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { elicitation: { form: {} }, fs: { readTextFile: true, writeTextFile: true } },
  });
  peer = ctx;
  const load = process.env.LOAD;
  const session = load
    ? await ctx.request(to.session.load, { sessionId: load, cwd, mcpServers: [] })
    : await ctx.request(to.session.new, { cwd, mcpServers: [] });
  if (load) await done;
  for (const text of prompts) {
    const prompt = [{ type: "text", text }];
    if (process.env.PICTURE) prompt.push({ type: "image", mimeType: "image/png", data: process.env.PICTURE });
    const turn = await ctx.request(to.session.prompt, { sessionId: session.sessionId, prompt });
    seen.stops.push(turn.stopReason);
  }
  seen.version = greeting.protocolVersion;
  seen.images = greeting.agentCapabilities.promptCapabilities.image;
  seen.modes = session.modes.availableModes.map((mode) => mode.id);
});
console.log(JSON.stringify(seen));
agent.stdin.end();
