// Runs the script of a page from stdin without a browser, at the hash of the first
// argument, and prints the texts that it has set, by id.
"use strict";
const page = require("fs").readFileSync(0, "utf8"), elements = {};
function element() {
  let html = "";
  return {
    value: "", options: [], addEventListener() {},
    get innerHTML() { return html; },
    set innerHTML(given) {
      html = given;
      this.options = [...given.matchAll(/<option value="(.*?)">(.*?)<\/option>/g)].map(([, value, text]) => ({value, text}));
    },
  };
}
const found = name => elements[name] ??= element();
Object.assign(globalThis, {
  document: {getElementById: found, querySelector: found},
  location: {hash: process.argv[2]}, history: {replaceState() {}}, addEventListener() {},
});
found("data").textContent = page.match(/id="data">(.*?)<\/script>/s)[1];
new Function(page.match(/<script>(.*?)<\/script>/s)[1])();
console.log(JSON.stringify(Object.fromEntries(Object.entries(elements).map(([id, e]) => [id, e.textContent ?? e.innerHTML]))));
