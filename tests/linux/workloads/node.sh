# needs: node
node -e '
const child = require("child_process"), fs = require("fs"), os = require("os"), threads = require("worker_threads");
fs.writeFileSync("a", "x");
fs.copyFileSync("a", "b");
console.log(child.execSync("echo sub").toString(), Object.keys(os.networkInterfaces()).length > 0, fs.readdirSync("."));
new threads.Worker("require(\"worker_threads\").parentPort.postMessage(7)", { eval: true }).on("message", console.log);
'
