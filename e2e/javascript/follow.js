// Follows the output of a command as the extension of an editor would: over the
// daemon's Unix socket, from a cursor on, across restarts of the daemon.
//
//   node follow.js PROTO_FOLDERS SOCKET EXEC
//
// The output of the command goes to stdout. At the end one line of JSON on stderr
// tells of the exit status and of how often the stream was opened.
'use strict'

const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

// How long a daemon that is away is waited for, and the pause between two tries.
const patience = 60_000
const pause = 20

const [folders, socket, exec] = process.argv.slice(2)
const definition = loader.loadSync('agbox/v1/service.proto', {
  includeDirs: folders.split(':'),
  keepCase: true,
  longs: String, // offsets do not fit a Number for ever
  enums: String,
  defaults: true,
  oneofs: true
})
const { SandboxService } = grpc.loadPackageDefinition(definition).agbox.v1
const client = new SandboxService('unix:' + socket, grpc.credentials.createInsecure(), {
  // A daemon is back within a moment; by default gRPC would wait longer each time.
  'grpc.initial_reconnect_backoff_ms': 20,
  'grpc.min_reconnect_backoff_ms': 20,
  'grpc.max_reconnect_backoff_ms': 200,
  'grpc.max_receive_message_length': 8 << 20
})

// Where to go on: the number of bytes taken from each stream.
const cursor = { stdout_offset: 0n, stderr_offset: 0n }
const places = { LOG_STREAM_STDOUT: 'stdout_offset', LOG_STREAM_STDERR: 'stderr_offset' }
let opened = 0
let lastNews = Date.now()

// take writes a chunk and moves the cursor. It returns false when stdout is slower
// than we are: then the stream is paused, and in the end the daemon holds it back.
function take (chunk) {
  const place = places[chunk.stream]
  const offset = BigInt(chunk.offset)
  if (offset !== cursor[place]) {
    throw new Error(`${chunk.stream} goes on at ${offset}, we were at ${cursor[place]}`)
  }
  cursor[place] += BigInt(chunk.data.length)
  return process.stdout.write(chunk.data)
}

// May a call that failed like this be made again?
function passing (error) {
  return [grpc.status.UNAVAILABLE, grpc.status.CANCELLED, grpc.status.RESOURCE_EXHAUSTED].includes(error.code)
}

function follow () {
  opened++
  const stream = client.FollowExecLogs({
    exec_id: exec,
    cursor: { stdout_offset: String(cursor.stdout_offset), stderr_offset: String(cursor.stderr_offset) },
    follow: true
  })
  let end = null
  stream.on('data', message => {
    lastNews = Date.now()
    if (message.item === 'chunk' && !take(message.chunk)) {
      stream.pause()
      process.stdout.once('drain', () => stream.resume())
    } else if (message.item === 'end') {
      end = message.end
    }
  })
  stream.on('error', error => {
    if (end === null) again(error)
  })
  stream.on('end', () => {
    if (end !== null) finish(end)
  })
}

function again (error) {
  if (!passing(error) || Date.now() - lastNews > patience) {
    console.error(`follow.js: ${error.message}`)
    process.exit(1)
  }
  setTimeout(follow, pause)
}

function finish (end) {
  console.error(JSON.stringify({
    state: end.exec.state,
    exit_code: end.exec.exit_code,
    stdout_bytes: end.cursor.stdout_offset,
    stderr_bytes: end.cursor.stderr_offset,
    notice: end.notice,
    opened
  }))
  client.close()
}

follow()
