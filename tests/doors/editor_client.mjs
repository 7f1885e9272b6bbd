// An editor on the official TypeScript SDK: one prompt, permission answered by the first argument, prints what it saw.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [command, cwd, option, ...prompts] = process.argv.slice(2);
const agent = spawn(command, ["acp"], { cwd, stdio: ["pipe", "pipe", "inherit"] });
const buffers = JSON.parse(process.env.BUFFERS || "{}"); // by path, not saved
const seen = { updates: [], permissions: [], stops: [], forms: 0 };

const { agent: to, client: from } = acp.methods;
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const editor = acp
  .client({ name: "editor" })
  .onRequest(from.session.requestPermission, ({ params }) => {
    seen.permissions.push(params.toolCall.content);
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
  });

await editor.connectWith(stream, async (ctx) => {
  const greeting = await ctx.request(to.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { elicitation: { form: {} }, fs: { readTextFile: true, writeTextFile: true } },
  });
  const session = await ctx.request(to.session.new, { cwd, mcpServers: [] });
  for (const text of prompts) {
    const prompt = [{ type: "text", text }];
    if (process.env.PICTURE) prompt.push({ type: "image", mimeType: "image/png", data: process.env.PICTURE });
    const done = await ctx.request(to.session.prompt, { sessionId: session.sessionId, prompt });
    seen.stops.push(done.stopReason);
  }
  seen.version = greeting.protocolVersion;
  seen.images = greeting.agentCapabilities.promptCapabilities.image;
  seen.modes = session.modes.availableModes.map((mode) => mode.id);
});
console.log(JSON.stringify(seen));
agent.stdin.end();
