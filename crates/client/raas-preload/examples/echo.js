// An echo server and its client in Node, as anybody writes them. `raas run` takes their connection over RaaS:
//
//   raas run node echo.js server 127.0.0.1 7600
//   raas run node echo.js client 127.0.0.1 7600 10000000
//
// The client sends in pieces, checks every byte that comes back, and keeps the connection until its input ends, so that
// `raas ss` can be asked about it.
'use strict';
const net = require('net');

const [mode, host, port, bytes] = process.argv.slice(2);

function server() {
  net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket))
    .listen(Number(port), host, () => console.log('listening'));
}

function client(total) {
  const sent = Buffer.alloc(total);
  for (let place = 0; place < total; place++) sent[place] = (place * 31 + (place >> 8)) & 0xff;
  const socket = net.connect(Number(port), host);
  let got = 0;
  socket.on('connect', () => {
    for (let place = 0; place < total; place += 100000) socket.write(sent.subarray(place, place + 100000));
  });
  socket.on('data', (piece) => {
    if (piece.compare(sent, got, got + piece.length) !== 0) {
      console.error(`wrong bytes behind byte ${got}`);
      process.exit(1);
    }
    got += piece.length;
    if (got === total) {
      console.log(`${got} bytes came back`);
      process.stdin.on('end', () => socket.end()).resume();
    }
  });
  socket.on('end', () => process.exit(got === total ? 0 : 1));
  socket.on('error', (error) => {
    console.error(String(error));
    process.exit(1);
  });
}

if (mode === 'server') server();
else client(Number(bytes));
