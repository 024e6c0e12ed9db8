// JavaScript clients against a host: complete, stream, cancel, report errors, chat, call tools, structured output, embed.
//
// Run by `tests/clients.rs` with a client's name; needs BASE_URL, MODEL and MODULES, the folder with the
// installed packages. Exits with 0 on success.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { BASE_URL, MODEL, MODULES } = process.env;
const require = createRequire(`${MODULES}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));

const baseURL = `${BASE_URL}/v1`;
const apiKey = "not-needed";
const question = "What is a prefix cache?";
const messages = [{ role: "user", content: question }];
const parameters = {
  type: "object",
  properties: { answer: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["answer"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "lookup", description: "Looks up.", parameters } }];
const forced = { type: "function", function: { name: "lookup" } };
const inRange = (n) => assert.ok(Number.isInteger(n) && n >= 0 && n <= 9, `${n}`);

async function openai(name) {
  const { default: OpenAI } = await load(name);
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  assert.equal((await client.models.list()).data[0].id, MODEL);

  const asked = { model: MODEL, prompt: question, temperature: 0, max_tokens: 24 };
  const whole = await client.completions.create(asked);
  let text = "";
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(text, whole.choices[0].text);

  const chat = { model: MODEL, messages, temperature: 0, max_tokens: 24 };
  const answer = await client.chat.completions.create({ ...chat, logprobs: true, top_logprobs: 1 });
  assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens);
  let said = "";
  const usage = { include_usage: true };
  for await (const chunk of await client.chat.completions.create({ ...chat, stream: true, stream_options: usage })) {
    said += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(said, answer.choices[0].message.content);

  // Newer versions ask for base64 and decode it, unless they are told a format.
  const [own, plain] = [{}, { encoding_format: "float" }].map((format) =>
    client.embeddings.create({ model: MODEL, input: [question, "Hello"], ...format }));
  const [decoded, numbers] = [(await own).data, (await plain).data].map((data) => data.map((one) => one.embedding));
  assert.equal(decoded.length, 2);
  decoded.forEach((vector, at) => vector.forEach((x, i) => assert.ok(Math.abs(x - numbers[at][i]) < 1e-6, `${x}`)));
  assert.ok(Math.abs(decoded[0].reduce((sum, x) => sum + x * x, 0) - 1) < 1e-5);

  const endless = await client.chat.completions.create({ ...chat, max_tokens: 1500, ignore_eos: true, stream: true });
  for await (const _ of endless) break;
  const abort = new AbortController();
  const waiting = client.completions.create({ ...asked, max_tokens: 1500, ignore_eos: true, n: 2 }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 50);
  await assert.rejects(waiting, (error) => error.name === "APIUserAbortError" || /abort/i.test(error.message));

  for (const [fields, status] of [[{ temperature: -1 }, 422], [{ messages: [] }, 400], [{ temprature: 1 }, 422]]) {
    await assert.rejects(client.chat.completions.create({ ...chat, ...fields }), (error) => {
      assert.equal(error.status, status);
      assert.ok(error.param && error.code && error.requestID !== undefined || error.request_id, `${error}`);
      return true;
    });
  }

  chat.max_tokens = 200;
  const called = await client.chat.completions.create({ ...chat, tools, tool_choice: forced });
  const call = called.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "lookup");
  inRange(JSON.parse(call.function.arguments).answer);
  let pieces = "";
  for await (const chunk of await client.chat.completions.create({ ...chat, tools, tool_choice: forced, stream: true })) {
    pieces += chunk.choices[0].delta.tool_calls?.[0].function.arguments ?? "";
  }
  inRange(JSON.parse(pieces).answer);
  const format = { type: "json_schema", json_schema: { name: "answer", schema: parameters, strict: true } };
  const structured = await client.chat.completions.create({ ...chat, response_format: format });
  inRange(JSON.parse(structured.choices[0].message.content).answer);
  await responses(client, said);
}

async function responses(client, said) {
  const asked = { model: MODEL, input: question, temperature: 0, max_output_tokens: 24 };
  const whole = await client.responses.create(asked);
  assert.equal(whole.output_text, said);
  let text = "";
  let number = 0;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    assert.equal(event.sequence_number, number++);
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === `response.${whole.status}`) assert.deepEqual(event.response.usage.output_tokens, whole.usage.output_tokens);
  }
  assert.equal(text, said);
  const tool = { type: "function", name: "lookup", description: "Looks up.", parameters, strict: true };
  const calling = { model: MODEL, input: question, tools: [tool], tool_choice: { type: "function", name: "lookup" } };
  const stream = client.responses.stream(calling);
  const final = await stream.finalResponse();
  const call = final.output[0];
  assert.equal(call.name, "lookup");
  inRange(JSON.parse(call.arguments).answer);
  const output = { type: "function_call_output", call_id: call.call_id, output: "9" };
  const items = [{ role: "user", content: question }, ...final.output, output];
  await client.responses.create({ model: MODEL, input: items, tools: [tool], max_output_tokens: 8 });
  const format = { type: "json_schema", name: "answer", schema: parameters, strict: true };
  const parsed = await client.responses.parse({ model: MODEL, input: question, text: { format } });
  inRange(JSON.parse(parsed.output_text).answer);
  await assert.rejects(client.responses.retrieve("resp_1"), (error) => error.status === 404);
}

async function aiSdk() {
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const { generateText, streamText, generateObject, tool, jsonSchema } = await load("ai");
  const provider = createOpenAICompatible({
    name: "infer", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
  });
  const model = provider(MODEL);
  const chat = { model, messages, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const whole = await generateText(chat);
  assert.ok(whole.text && whole.usage.outputTokens > 0);
  const stream = streamText(chat);
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  const completed = await generateText({ ...chat, model: provider.completionModel(MODEL), messages: undefined, prompt: question });
  assert.ok(completed.text !== undefined);

  const object = await generateObject({ ...chat, maxOutputTokens: 200, schema: jsonSchema(parameters) });
  inRange(object.object.answer);
  const lookup = tool({ description: "Looks up.", inputSchema: jsonSchema(parameters) });
  const called = await generateText({ ...chat, maxOutputTokens: 200, tools: { lookup }, toolChoice: "required" });
  inRange(called.toolCalls[0].input.answer);
  const calling = streamText({ ...chat, maxOutputTokens: 200, tools: { lookup }, toolChoice: "required" });
  inRange((await calling.toolCalls)[0].input.answer);

  const abort = new AbortController();
  const endless = streamText({
    ...chat, maxOutputTokens: 1500, abortSignal: abort.signal, providerOptions: { infer: { ignore_eos: true } },
  });
  for await (const _ of endless.textStream) { abort.abort(); break; }
  await assert.rejects(generateText({ ...chat, temperature: -1 }), (error) => {
    assert.equal(error.statusCode, 422);
    assert.match(error.message, /temperature/);
    return true;
  });
}

const clients = { "openai-node": () => openai("openai"), "openai-node-4": () => openai("openai4"), "ai-sdk": aiSdk };
await clients[process.argv[2]]();
console.log("ok");
process.exit(0);
