"""The page at `/docs`: lists the routes of `/openapi.json`, without resources of other hosts."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tenure API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
summary { cursor: pointer; padding: .3rem 0; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: #f4f4f4; padding: 1rem; overflow: auto; }
b { display: inline-block; min-width: 4rem; }
</style>
<h1>Tenure API</h1>
<p>The whole description is at <a id="address">openapi.json</a>.</p>
<main id="routes"></main>
<script>
const element = (tag, text) => Object.assign(document.createElement(tag), {textContent: text ?? ""});
const resolve = (spec, schema) => schema?.$ref ? spec.components.schemas[schema.$ref.split("/").pop()] : schema;
const address = location.pathname.replace(/\\/*$/, "/../openapi.json");
document.getElementById("address").href = address;
fetch(address).then(reply => reply.json()).then(spec => {
  const main = document.getElementById("routes");
  for (const [path, operations] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const box = element("details"), head = element("summary");
      head.append(element("b", method.toUpperCase()), element("code", path), " – " + operation.summary);
      box.append(head);
      const body = operation.requestBody?.content["application/json"].schema;
      if (body) box.append(element("h4", "Body"), element("pre", JSON.stringify(resolve(spec, body), null, 2)));
      box.append(element("h4", "Answers"));
      for (const [status, answer] of Object.entries(operation.responses))
        box.append(element("div", status + ": " + answer.description));
      main.append(box);
    }
  }
}).catch(error => document.getElementById("routes").append(element("p", "Could not load openapi.json: " + error)));
</script>
</html>
"""
