// kafkajs driven from another process: a command a line on standard input, an answer a line on standard output.
//
// Started by tests/support/kafkajs.py, which says what the commands are. Bytes travel as {"$bytes": base64}.
'use strict'

const readline = require('node:readline')
const { Kafka, KafkaJSError, CompressionTypes, logLevel } = require('kafkajs')

const handles = new Map()
const taken = new Map() // what a consumer was given since it was last asked, by its handle
let lastHandle = 0

function keep(object) {
  handles.set(++lastHandle, object)
  return lastHandle
}

function bytesIn(key, value) {
  return value && typeof value.$bytes === 'string' ? Buffer.from(value.$bytes, 'base64') : value
}

function bytesOut(key, value) {
  const held = this[key] // before Buffer.toJSON took its turn
  if (Buffer.isBuffer(held)) return { $bytes: held.toString('base64') }
  return typeof held === 'bigint' ? held.toString() : value
}

const commands = {
  async open({ kind, kafka, options }) {
    if (kafka.ssl) kafka.ssl = { ca: [kafka.ssl.ca], cert: kafka.ssl.cert, key: kafka.ssl.cert }
    if (kafka.sasl && kafka.sasl.token) {
      const { token, ...sasl } = kafka.sasl
      kafka.sasl = { ...sasl, oauthBearerProvider: async () => ({ value: token }) }
    }
    const client = new Kafka({ logLevel: logLevel.NOTHING, ...kafka })[kind](options)
    const handle = keep(client)
    taken.set(handle, { records: [], joined: [], crashed: null })
    if (kind === 'consumer') {
      client.on(client.events.GROUP_JOIN, event => taken.get(handle).joined.push(event.payload))
      client.on(client.events.CRASH, event => (taken.get(handle).crashed = String(event.payload.error)))
    }
    await client.connect()
    return handle
  },

  async call({ on, method, arguments: given }) {
    if (given[0] && typeof given[0].compression === 'string') {
      given[0].compression = CompressionTypes[given[0].compression]
    }
    const answer = await handles.get(on)[method](...given)
    return method === 'transaction' ? keep(answer) : answer === undefined ? null : answer
  },

  // The records go where `taken` finds them; a batch is one call, so that offsets are committed by batch.
  async run({ on, options }) {
    await handles.get(on).run({
      ...options,
      eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
        for (const record of batch.messages) {
          taken.get(on).records.push({ topic: batch.topic, partition: batch.partition, ...record })
          resolveOffset(record.offset)
        }
        await heartbeat()
      },
    })
    return null
  },

  async taken({ on }) {
    const found = taken.get(on)
    taken.set(on, { records: [], joined: [], crashed: null })
    return found
  },

  async close({ on }) {
    const client = handles.get(on)
    handles.delete(on)
    await client.disconnect()
    return null
  },
}

async function answer(line) {
  const { id, command, ...rest } = JSON.parse(line, bytesIn)
  let reply
  try {
    reply = { id, result: await commands[command](rest) }
  } catch (error) {
    const known = error instanceof KafkaJSError
    reply = { id, error: { name: error.name, type: error.type || null, text: known ? error.message : error.stack } }
    if (Array.isArray(error.errors)) reply.error.causes = error.errors.map(cause => cause.type || cause.message)
    if (Array.isArray(error.groups)) reply.error.causes = error.groups.map(group => group.error.type)
  }
  process.stdout.write(JSON.stringify(reply, bytesOut) + '\n')
}

readline.createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0))
