// Node's http, server and client with kept connections.
// Usage: http_node.js server HOST PORT | client HOST PORT REQUESTS
const http = require("http");
const crypto = require("crypto");
const [role, host, port, requests] = process.argv.slice(2);

function ask(agent, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host, port, agent, method: "POST", path: "/echo" }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve(Buffer.concat(parts)));
      answer.on("error", reject);
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function client() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  const begin = process.hrtime.bigint();
  let left = Number(requests);
  const one = async () => {
    while (left-- > 0) {
      const body = crypto.randomBytes(1 + ((left * 37) % 5000));
      if (!(await ask(agent, body)).equals(body)) throw new Error("another answer");
    }
  };
  await Promise.all([one(), one(), one(), one()]);
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  const large = crypto.randomBytes(3000000);
  if (!(await ask(agent, large)).equals(large)) throw new Error("another answer");
  agent.destroy();
  console.log(`speed ${Math.round(requests / seconds)} requests/s`);
}

if (role === "server") http.createServer((request, answer) => request.pipe(answer)).listen(port, host);
else client().catch((error) => { console.error(error); process.exit(1); });
