"""Python clients against a host: complete, stream, cancel, report errors, chat, call tools, structured output, embed.

Run by `tests/clients.rs` with a client's name; needs BASE_URL and MODEL. Exits with 0 on success.
"""

import asyncio
import json
import os
import sys

BASE_URL = os.environ["BASE_URL"]
MODEL = os.environ["MODEL"]
KEY = "not-needed"
QUESTION = "What is a prefix cache?"
MESSAGES = [{"role": "user", "content": QUESTION}]
ENDLESS = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "lookup", "description": "Looks up.", "parameters": SCHEMA}}


def check(truth, what):
    if not truth:
        raise AssertionError(what)


def check_call(name, arguments):
    check(name == "lookup", name)
    check(0 <= json.loads(arguments)["answer"] <= 9, arguments)


def openai_python():
    import openai

    client = openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0)
    check(client.models.list().data[0].id == MODEL, "models.list")
    check(client.models.retrieve(MODEL).id == MODEL, "models.retrieve")

    whole = client.completions.create(model=MODEL, prompt=QUESTION, temperature=0, max_tokens=24, logprobs=2, n=2)
    check(len(whole.choices) == 2 and whole.choices[0].text == whole.choices[1].text, whole)
    check(len(whole.choices[0].logprobs.token_logprobs) == whole.usage.completion_tokens // 2, whole)
    stream = client.completions.create(model=MODEL, prompt=QUESTION, temperature=0, max_tokens=24, stream=True,
                                       stream_options={"include_usage": True})
    chunks = list(stream)
    check("".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text, chunks)
    check(chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens, chunks[-1])

    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_completion_tokens=24,
                                          logprobs=True, top_logprobs=2, reasoning_effort="low", verbosity="low",
                                          store=True, metadata={"run": "1"}, service_tier="flex")
    check(chat.choices[0].message.role == "assistant" and chat.choices[0].message.content, chat)
    check(len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens, chat)
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=24, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    check(text == chat.choices[0].message.content, text)

    asked = {"model": MODEL, "temperature": 0, "max_tokens": 24, "extra_body": {"return_token_ids": True}}
    chat = client.chat.completions.create(messages=MESSAGES, **asked)
    check(len(chat.prompt_token_ids) == chat.usage.prompt_tokens, chat)
    check(len(chat.choices[0].token_ids) == chat.usage.completion_tokens, chat)
    stream = client.chat.completions.create(messages=MESSAGES, stream=True, **asked)
    check([i for c in stream for i in c.choices[0].token_ids] == chat.choices[0].token_ids, "ids of chunks")
    same = client.completions.create(prompt=chat.prompt_token_ids, **asked)
    check(same.choices[0].token_ids == chat.choices[0].token_ids, same)

    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **ENDLESS)
    next(iter(stream))
    stream.close()

    for fields, kind in [
        ({"temperature": -1}, openai.UnprocessableEntityError),
        ({"messages": []}, openai.BadRequestError),
        ({"model": "other"}, openai.UnprocessableEntityError),
        ({"extra_body": {"temprature": 1}}, openai.UnprocessableEntityError),
    ]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
            raise AssertionError(f"{fields} was taken")
        except kind as error:
            check(error.body["param"] and error.body["message"] and error.request_id, error)

    choice = {"type": "function", "function": {"name": "lookup"}}
    called = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice=choice)
    call = called.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "9"}
    client.chat.completions.create(model=MODEL, messages=[*MESSAGES, called.choices[0].message, answer], tools=[TOOL],
                                   max_tokens=8)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice=choice) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)

    from pydantic import BaseModel, Field

    class Answer(BaseModel, extra="forbid"):
        answer: int = Field(ge=0, le=9)

    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Answer)
    check(0 <= parsed.choices[0].message.parsed.answer <= 9, parsed)
    openai_embeddings(openai, client)
    openai_responses(openai, client, Answer, chat.choices[0].message.content)
    asyncio.run(openai_async(openai))


def openai_embeddings(openai, client):
    asked = {"model": MODEL, "input": [QUESTION, "Hello"]}
    # Without a format the client asks for base64 and decodes it.
    packed = client.embeddings.create(**asked, user="me")
    plain = client.embeddings.create(**asked, encoding_format="float")
    check([e.index for e in packed.data] == [0, 1] and packed.usage.total_tokens == packed.usage.prompt_tokens, packed)
    for a, b in zip(packed.data, plain.data, strict=True):
        check(max(abs(x - y) for x, y in zip(a.embedding, b.embedding, strict=True)) < 1e-6, "base64 and floats")
        check(abs(sum(x * x for x in a.embedding) - 1) < 1e-5, "the length of a vector")
    check(packed.data[0].embedding != packed.data[1].embedding, "two texts")
    fewer = client.embeddings.create(model=MODEL, input=QUESTION, dimensions=16)
    check(len(fewer.data[0].embedding) == 16, fewer)
    for fields, kind in [({"input": ""}, openai.BadRequestError), ({"dimensions": 10**6}, openai.UnprocessableEntityError)]:
        try:
            client.embeddings.create(**{**asked, **fields})
            raise AssertionError(f"{fields} was taken")
        except kind as error:
            check(error.body["param"] == next(iter(fields)), error)


def openai_responses(openai, client, Answer, said):
    asked = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**asked, store=False, metadata={"run": "1"}, reasoning={"effort": "low"},
                                    include=["message.output_text.logprobs"], top_logprobs=2)
    check(whole.output_text == said, whole)
    check(type(whole).model_validate(whole.to_dict()).status in ("completed", "incomplete"), whole)
    check(whole.output[0].content[0].logprobs[0].top_logprobs[1].token, whole)
    events = list(client.responses.create(**asked, stream=True))
    for number, event in enumerate(events):
        # Strictly, which the client itself is not.
        check(type(event).model_validate(event.to_dict()).sequence_number == number, event)
    check("".join(e.delta for e in events if e.type == "response.output_text.delta") == said, events)
    last = events[-1]
    check(last.type == f"response.{whole.status}" and last.response.output_text == said, last)
    check(last.response.usage.output_tokens == whole.usage.output_tokens, last)

    stream = client.responses.create(**{**asked, "max_output_tokens": 1500}, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    for fields in [{"previous_response_id": "resp_1"}, {"tools": [{"type": "web_search"}]}, {"max_output_tokens": 10**6}]:
        try:
            client.responses.create(**{**asked, **fields})
            raise AssertionError(f"{fields} was taken")
        except openai.UnprocessableEntityError as error:
            check(error.body["param"] == next(iter(fields)), error)

    tool = {"type": "function", "name": "lookup", "description": "Looks up.", "parameters": SCHEMA, "strict": True}
    calling = {"model": MODEL, "tools": [tool], "tool_choice": {"type": "function", "name": "lookup"}}
    called = client.responses.create(input=QUESTION, **calling)
    check_call(called.output[0].name, called.output[0].arguments)
    with client.responses.stream(input=QUESTION, **calling) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        call = stream.get_final_response().output[0]
    check_call(call.name, "".join(pieces))
    items = [{"role": "user", "content": QUESTION}, call.to_dict(),
             {"type": "function_call_output", "call_id": call.call_id, "output": "9"}]
    client.responses.create(model=MODEL, input=items, tools=[tool], max_output_tokens=8)
    parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=Answer)
    check(0 <= parsed.output_parsed.answer <= 9, parsed)


async def openai_async(openai):
    async with openai.AsyncOpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY) as client:
        one = client.completions.create(model=MODEL, prompt=[QUESTION, "Hello"], temperature=0, max_tokens=8)
        endless = asyncio.create_task(client.completions.create(model=MODEL, prompt=QUESTION, n=3, **ENDLESS))
        check(len((await one).choices) == 2, "a batch of two")
        endless.cancel()
        try:
            await endless
        except asyncio.CancelledError:
            pass


def anthropic_python():
    from typing import Literal

    import anthropic
    from pydantic import BaseModel

    client = anthropic.Anthropic(base_url=BASE_URL, api_key=KEY, max_retries=0)
    common = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24}
    greedy = {"temperature": 0}
    whole = client.messages.create(**common, system="Be brief.", extra_body=greedy, metadata={"user_id": "me"},
                                   service_tier="auto", cache_control={"type": "ephemeral"})
    check(whole.type == "message" and whole.id.startswith("msg_") and whole.content[0].text, whole)
    check(whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens > 0, whole)
    check(whole._request_id == whole.id.removeprefix("msg_"), whole._request_id)
    with client.messages.stream(**common, system="Be brief.", extra_body=greedy) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(text == final.content[0].text == whole.content[0].text, text)
    total = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (whole, final)]
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, system="Be brief.")
    check(total == [counted.input_tokens] * 2, (total, counted))
    word = text.split()[1]
    stopped = client.messages.create(**common, system="Be brief.", extra_body=greedy, stop_sequences=[word])
    check((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word), stopped)
    nothing = {**common, "system": "Be brief.", "extra_body": greedy, "stop_sequences": [text[:2]]}
    with client.messages.stream(**nothing) as stream:
        check("".join(stream.text_stream) == "", "text")
        final = stream.get_final_message()
    empty = client.messages.create(**nothing)
    for message in (empty, final):
        check((message.content, message.stop_reason) == ([], "stop_sequence"), message)
    turns = [*MESSAGES, {"role": "assistant", "content": empty.content}, {"role": "user", "content": "Go on."}]
    check(client.messages.create(model=MODEL, messages=turns, max_tokens=8).id, "a message")

    endless = {**common, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    events = client.messages.create(stream=True, **endless)
    check(next(iter(events)).type == "message_start", "the first event")
    events.close()

    tool = {"name": "lookup", "description": "Looks up.", "input_schema": SCHEMA}
    forced = {"tools": [tool], "tool_choice": {"type": "tool", "name": "lookup"}, "max_tokens": 200}
    called = client.messages.create(**{**common, **forced})
    with client.messages.stream(**{**common, **forced}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    check(kinds[0] == "message_start" and "input_json" in kinds and kinds[-1] == "message_stop", kinds)
    for message in (called, final):
        check(message.stop_reason == "tool_use", message)
        check_call(message.content[0].name, json.dumps(message.content[0].input))
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "9"}
    turns = [*MESSAGES, called.to_param(), {"role": "user", "content": [result]}]
    client.messages.create(model=MODEL, messages=turns, tools=[tool], max_tokens=8)

    class Answer(BaseModel, extra="forbid"):
        answer: Literal["yes", "no"]  # Bounds of numbers become words of the description.

    parsed = client.messages.parse(**{**common, "max_tokens": 400}, output_format=Answer)
    check(parsed.parsed_output is not None, parsed)

    for fields, kind in [
        ({"messages": []}, anthropic.BadRequestError),
        ({"model": "other"}, anthropic.UnprocessableEntityError),
        ({"extra_body": {"temprature": 1}}, anthropic.UnprocessableEntityError),
        ({"messages": [{"role": "user", "content": QUESTION * 2000}]}, anthropic.UnprocessableEntityError),
    ]:
        try:
            client.messages.create(**{**common, **fields})
            raise AssertionError(f"{fields} was taken")
        except kind as error:
            check(error.type == "invalid_request_error" and error.request_id, error)
            check(error.body["error"]["param"] and error.api_message, error)
    asyncio.run(anthropic_async(anthropic, common))


async def anthropic_async(anthropic, common):
    async with anthropic.AsyncAnthropic(base_url=BASE_URL, auth_token=KEY) as client:
        one = client.messages.create(**common)
        endless = {**common, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
        endless = asyncio.create_task(client.messages.create(**endless))
        check((await one).content, "a message")
        endless.cancel()
        try:
            await endless
        except asyncio.CancelledError:
            pass


def openai_agents():
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI
    from pydantic import BaseModel, Field

    class Answer(BaseModel, extra="forbid"):
        answer: int = Field(ge=0, le=9)

    looked_up = []

    @function_tool
    def lookup(answer: int) -> str:
        """Looks up."""
        looked_up.append(answer)
        return "A prefix cache keeps blocks."

    async def run():
        model = OpenAIResponsesModel(MODEL, AsyncOpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0))
        # Room for an end: an agent takes a reply that is cut off for a failure.
        settings = ModelSettings(temperature=0, max_tokens=400, extra_body={"stop": ["."]})
        plain = Agent(name="plain", instructions="Be brief.", model=model, model_settings=settings)
        whole = await Runner.run(plain, QUESTION)
        check(whole.final_output, whole)
        streamed = Runner.run_streamed(plain, QUESTION)
        events = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        check("".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.final_output, events)
        check(streamed.final_output == whole.final_output, streamed.final_output)
        # A second turn, with what the first one returned.
        more = await Runner.run(plain, [*whole.to_input_list(), {"role": "user", "content": "And a block table?"}])
        check(more.final_output is not None, more)
        typed = Agent(name="typed", model=model, output_type=Answer)
        check(0 <= (await Runner.run(typed, QUESTION)).final_output.answer <= 9, "structured")
        # The first turn is forced to call; the second one, with the tool's output, is free.
        forced = ModelSettings(temperature=0, max_tokens=400, tool_choice="lookup", extra_body={"stop": ["."]})
        caller = Agent(name="caller", model=model, model_settings=forced, tools=[lookup])
        await Runner.run(caller, QUESTION)
        check(len(looked_up) == 1, looked_up)

    asyncio.run(run())


def langchain():
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
    from pydantic import BaseModel, Field

    class Answer(BaseModel, extra="forbid"):
        """An answer."""

        answer: int = Field(ge=0, le=9)

    chat = ChatOpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=24, max_retries=0)
    whole = chat.invoke(QUESTION)
    check(whole.content and whole.usage_metadata["output_tokens"] > 0, whole)
    check("".join(chunk.content for chunk in chat.stream(QUESTION)) == whole.content, "the stream")
    check(len(chat.batch([QUESTION, "Hello"])) == 2, "a batch")
    chat = chat.model_copy(update={"max_tokens": 200})
    structured = chat.with_structured_output(Answer, method="json_schema")
    check(0 <= structured.invoke(QUESTION).answer <= 9, "structured")
    tools = chat.bind_tools([TOOL], tool_choice="lookup")
    call = tools.invoke(QUESTION).tool_calls[0]
    check(call["name"] == "lookup" and 0 <= call["args"]["answer"] <= 9, call)
    called = chat.with_structured_output(Answer, method="function_calling").invoke(QUESTION)
    check(0 <= called.answer <= 9, "structured by a call")
    endless = chat.bind(max_tokens=1500, extra_body={"ignore_eos": True}).stream(QUESTION)
    next(endless)
    endless.close()
    llm = OpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=8)
    check("".join(llm.stream(QUESTION)) == llm.invoke(QUESTION), "completions")
    # It would count tokens with a tokenizer of OpenAI's.
    embeddings = OpenAIEmbeddings(base_url=f"{BASE_URL}/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False)
    check(len(embeddings.embed_documents([QUESTION, "Hello"])) == 2, "documents")
    check(abs(sum(x * x for x in embeddings.embed_query(QUESTION)) - 1) < 1e-5, "the length of a vector")
    try:
        chat.bind(temperature=-1).invoke(QUESTION)
        raise AssertionError("a negative temperature was taken")
    except Exception as error:
        check("temperature" in str(error), error)


def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    common = {"model": f"openai/{MODEL}", "api_base": f"{BASE_URL}/v1", "api_key": KEY, "temperature": 0}
    whole = litellm.completion(messages=MESSAGES, max_tokens=24, **common)
    check(whole.choices[0].message.content and whole.usage.completion_tokens > 0, whole)
    stream = litellm.completion(messages=MESSAGES, max_tokens=24, stream=True, **common)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    check(text == whole.choices[0].message.content, text)
    text = {**common, "model": f"text-completion-openai/{MODEL}"}
    check(litellm.text_completion(prompt=QUESTION, max_tokens=8, **text).choices[0].text, "text_completion")
    forced = {"type": "function", "function": {"name": "lookup"}}
    called = litellm.completion(messages=MESSAGES, tools=[TOOL], tool_choice=forced, **common)
    call = called.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    body = litellm.completion(messages=MESSAGES, response_format=schema, **common).choices[0].message.content
    check(0 <= json.loads(body)["answer"] <= 9, body)
    endless = litellm.completion(messages=MESSAGES, max_tokens=1500, stream=True,
                                 extra_body={"ignore_eos": True}, **common)
    next(iter(endless))
    endless.completion_stream.close()
    try:
        litellm.completion(messages=MESSAGES, max_tokens=1_000_000, **common)
        raise AssertionError("a million tokens were promised")
    except litellm.exceptions.ContextWindowExceededError as error:
        check("max_tokens" in str(error), error)


CLIENTS = {"openai-python": openai_python, "openai-agents": openai_agents, "anthropic-python": anthropic_python,
           "langchain": langchain, "litellm": litellm}
CLIENTS[sys.argv[1]]()
print("ok")
