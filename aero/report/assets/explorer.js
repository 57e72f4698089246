// The report's explorer: rows side by side for a model, context, network and program of the reader's choice, and the
// claims, sorted and filtered. It works on what aero/report/explorer.py embeds in the page, and loads nothing.
(() => {
  "use strict";
  const place = document.getElementById("explorer");
  const source = document.getElementById("explorer-data");
  if (!place || !source) return;
  const data = JSON.parse(source.textContent);

  const GB = 1e9;
  const MARKS = { published: "", paper_dimensions: "●", smaller_scale: "○" };
  const WORDS = {
    published: "published",
    paper_dimensions: "measured at the papers’ dimensions",
    smaller_scale: "measured at a smaller scale",
  };
  const NAMES = { as_published: "as published", as_written: "as written", tuned: "tuned" };

  // Seconds of a pass on a network, in parts, as aero.two_party.network adds them up; null where something is not known.
  function latency(cost, network) {
    if (!network || [cost.wire_bytes, cost.rounds, cost.seconds].includes(null)) return null;
    const transfer = (cost.wire_bytes * 8) / (network.bandwidth_mbit * 1e6);
    const rounds = (cost.rounds * network.rtt_ms) / 1e3;
    return { compute: cost.seconds, transfer, rounds, seconds: cost.seconds + transfer + rounds };
  }

  const isKnown = (cost, extrapolate) => cost.how !== "missing" && (extrapolate || cost.how !== "extrapolated");

  // Building the page ------------------------------------------------------------------------------------------------

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null) made.setAttribute(key, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== ""));
    return made;
  }

  const fill = (parent, ...children) => parent.replaceChildren(...children.flat());

  // A number leads to its file: the given one, or the first that what is said about it names.
  function figure(text, origin, about, file = (about.match(/\b(?:results|runs)\/[\w./()+=-]+\.(?:json|csv)/) || [""])[0]) {
    const mark = MARKS[origin] ? element("span", { class: "mark" }, MARKS[origin]) : null;
    const shown = file ? [element("a", { href: `../${file}` }, mark, text)] : [mark, text];
    return element("span", { class: `num ${origin}`, title: `${WORDS[origin]}: ${about}` }, shown);
  }

  const gap = (text) => element("span", { class: "missing" }, text);

  const signed = (value) => (value < 0 ? "" : "+") + value.toFixed(1);

  // An architecture's notation, breakable at its plus signs.
  function notation(text) {
    const pieces = text.split("+").flatMap((piece, index) => (index ? ["+", element("wbr"), piece] : [piece]));
    return element("code", {}, pieces);
  }

  function field(label, control) {
    return element("label", { class: "field" }, element("span", {}, label), control);
  }

  function checkbox(text, checked, changed, attributes = {}) {
    const box = element("input", { type: "checkbox", ...attributes });
    box.checked = checked;
    box.addEventListener("change", () => changed(box.checked));
    return element("label", { class: "choice" }, box, element("span", {}, text));
  }

  function options(select, pairs, chosen) {
    fill(select, pairs.map(([value, text]) => element("option", { value, selected: value === chosen }, text)));
    select.value = chosen;
  }

  // A table whose column heads sort it: columns are {title, value(line) or null, cells(line)}.
  function sortedTable(columns, caption) {
    const order = { column: -1, down: false };
    let lines = [];
    const body = element("tbody");
    const heads = columns.map((column, index) => {
      if (!column.value) return element("th", { scope: "col" }, column.title);
      const button = element("button", { type: "button", class: "sort", onclick: () => sort(index) }, column.title);
      return element("th", { scope: "col", "aria-sort": "none" }, button);
    });

    function sort(index) {
      if (order.column !== index) Object.assign(order, { column: index, down: false });
      else if (!order.down) order.down = true;
      else Object.assign(order, { column: -1, down: false });
      draw();
    }

    function draw() {
      heads.forEach((head, index) => {
        if (!columns[index].value) return;
        const direction = order.column !== index ? "none" : order.down ? "descending" : "ascending";
        head.setAttribute("aria-sort", direction);
      });
      fill(body, sorted().map((line) => {
        const cells = columns.map((column) =>
          element("td", { "data-label": column.title }, element("div", {}, column.cells(line))));
        return element("tr", {}, cells);
      }));
    }

    // What is not known stands last, whichever way the rest goes; what is equal keeps its place.
    function sorted() {
      if (order.column < 0) return lines;
      const value = columns[order.column].value;
      const compare = (one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === null || b === null) return (a === null) - (b === null);
        const way = typeof a === "string" ? a.localeCompare(b, "en") : a - b;
        return order.down ? -way : way;
      };
      return [...lines].sort(compare);
    }

    const table = element("table", {}, element("caption", { class: "unseen" }, caption),
      element("thead", {}, element("tr", {}, heads)), body);
    return {
      table,
      sorted,
      show(next) {
        lines = next;
        draw();
      },
    };
  }

  // Rows side by side ------------------------------------------------------------------------------------------------

  const settings = Object.keys(data.settings);
  const state = {
    setting: settings[0] || "",
    rows: new Set(),
    network: Object.keys(data.networks)[0] || "own",
    own: { bandwidth_mbit: 100, rtt_ms: 80, ...Object.values(data.networks)[0] },
    programs: new Set(data.programs),
    extrapolate: false,
    reference: "",
    filter: "",
  };

  const rowsHere = () => data.rows.filter((row) => row.setting === state.setting);
  const chosenRows = () => rowsHere().filter((row) => state.rows.has(row.run));

  function network() {
    const { bandwidth_mbit, rtt_ms } = state.own;
    return Number.isFinite(bandwidth_mbit) && bandwidth_mbit > 0 && Number.isFinite(rtt_ms) && rtt_ms >= 0
      ? { bandwidth_mbit, rtt_ms }
      : null;
  }

  // One line a row and program, with everything the table shows; numbers are not rounded here.
  function lines() {
    const link = network();
    const reference = chosenRows().find((row) => row.run === state.reference);
    const over = (row, program, quantity) => {
      const [own, other] = [row, reference].map((one) => {
        const cost = one && one.costs[program];
        return cost && isKnown(cost, state.extrapolate) ? quantity(cost) : null;
      });
      return own && other ? other / own : null;
    };
    return chosenRows().flatMap((row) => data.programs.filter((name) => state.programs.has(name)).map((program) => {
      const cost = row.costs[program];
      const known = isKnown(cost, state.extrapolate);
      const time = known ? latency(cost, link) : null;
      return {
        row, program, cost, known, time,
        gigabytes: known && cost.bytes !== null ? cost.bytes / GB : null,
        saving: over(row, program, (one) => one.bytes),
        faster: over(row, program, (one) => (latency(one, link) || { seconds: null }).seconds),
      };
    }));
  }

  function perplexity({ row }) {
    const { increase, low, high, seeds, why, source: files } = row.perplexity;
    if (increase === null) return [gap(why)];
    if (row.label === data.baseline) return [figure("baseline", data.origin, files)];
    const interval = low === null ? "" : ` [${signed(low)}, ${signed(high)}]`;
    const counted = `${seeds} seed${seeds === 1 ? ", no interval" : "s"}${why ? `; ${why}` : ""}`;
    return [figure(`${signed(increase)} %${interval}`, data.origin, files), aside(counted)];
  }

  const aside = (...text) => element("span", { class: "where aside" }, ...text);

  // The print stands beside the best fit of it, or where that is not shown or not known beside the network as written.
  function printed(line, key, unit) {
    const value = line.row.published[key];
    const fit = state.programs.has("as_published") ? line.row.costs.as_published : null;
    const known = fit && isKnown(fit, false) && (key !== "minutes" || latency(fit, network()));
    if (value === undefined || value === null || line.program !== (known ? "as_published" : "as_written")) return null;
    return aside(figure(value.toFixed(2), "published", line.row.published.place, "aero/published/aero.yaml"), ` ${unit} published`);
  }

  const measured = (line, text) => figure(text, "paper_dimensions", `${line.cost.source}, ${line.cost.how}`);

  function ratio(line, value) {
    return value === null ? [gap("–")] : [measured(line, `${value.toFixed(2)}×`)];
  }

  // The bar only repeats the numbers beside it.
  function split(line, longest) {
    if (!line.time) return [gap("–")];
    const parts = [["computing", "compute"], ["transfer", "transfer"], ["rounds × RTT", "rounds"]];
    const bar = element("div", { class: "split", "aria-hidden": "true" });
    for (const [, key] of parts) {
      const piece = element("span", { class: key });
      piece.style.width = `${(100 * line.time[key]) / longest}%`;
      bar.append(piece);
    }
    const texts = parts.map(([name, key]) => element("span", { class: "part" }, element("i", { class: key }), `${name} `,
      measured(line, `${(line.time[key] / 60).toFixed(2)}`)));
    return [bar, element("div", { class: "parts" }, texts)];
  }

  function percent(error) {
    return error === null ? "unknown" : `±${(100 * error).toFixed(1)} %`;
  }

  function howKnown({ cost, known }) {
    if (!known) {
      const told = cost.how === "extrapolated" ? "outside what was measured" : "missing";
      return [gap(told), aside(cost.why)];
    }
    if (cost.how === "composed") return ["composed", aside("every operation measured at these shapes")];
    const errors = `error of the bytes ${percent(cost.bytes_error)}, of the rounds ${percent(cost.rounds_error)}, `
      + `of the seconds ${percent(cost.seconds_error)}`;
    if (cost.how === "estimated") return ["estimated", aside(`by laws between measured shapes, ${errors}`)];
    return [gap("extrapolated, no bound"), aside(cost.why)];
  }

  let longest = 1;
  const compared = sortedTable([
    { title: "row", value: (line) => line.row.label,
      cells: (line) => [notation(line.row.label), aside(NAMES[line.program] || line.program)] },
    { title: "PPL change", value: (line) => line.row.perplexity.increase, cells: perplexity },
    { title: "communication, GB", value: (line) => line.gigabytes,
      cells: (line) => line.gigabytes === null
        ? [gap("–")] : [measured(line, line.gigabytes.toFixed(3)), printed(line, "gigabytes", "GB")] },
    { title: "less of it, ×", value: (line) => line.saving, cells: (line) => ratio(line, line.saving) },
    { title: "messages", value: (line) => (line.known ? line.cost.messages : null),
      cells: (line) => line.known && line.cost.messages !== null
        ? [measured(line, line.cost.messages.toFixed(0))] : [gap("–")] },
    { title: "latency, min", value: (line) => line.time && line.time.seconds,
      cells: (line) => line.time
        ? [measured(line, (line.time.seconds / 60).toFixed(2)),
          state.network === "wan" ? printed(line, "minutes", "min") : null] : [gap("–")] },
    { title: "faster, ×", value: (line) => line.faster, cells: (line) => ratio(line, line.faster) },
    { title: "where the minutes go", value: null, cells: (line) => split(line, longest) },
    { title: "how it is known", value: (line) => (line.known ? line.cost.how : null), cells: howKnown },
  ], "Cost and perplexity of the chosen rows");

  const told = element("p", { class: "told", role: "status" });
  const slower = element("p", { class: "where slower" });
  const list = element("div", { class: "rows", role: "group", "aria-label": "Rows" });
  const setting = element("select", { id: "explorer-setting", onchange: () => choose(setting.value) });
  const link = element("select", { id: "explorer-network", onchange: () => chooseNetwork(link.value) });
  const bandwidth = element("input", { id: "explorer-bandwidth", type: "number", min: "0", step: "any",
    oninput: () => ownNetwork() });
  const rtt = element("input", { id: "explorer-rtt", type: "number", min: "0", step: "any", oninput: () => ownNetwork() });
  const reference = element("select", { id: "explorer-reference", onchange: () => {
    state.reference = reference.value;
    draw();
  } });
  const filter = element("input", { id: "explorer-filter", type: "search", placeholder: "for example ScFu",
    oninput: () => {
      state.filter = filter.value.trim().toLowerCase();
      drawList();
    } });

  // Another setting keeps the architectures that were chosen, where it has them.
  function choose(key) {
    const labels = new Set(state.rows.size ? chosenRows().map((row) => row.label) : data.start);
    state.setting = key;
    const here = rowsHere();
    const kept = here.filter((row) => labels.has(row.label));
    state.rows = new Set((kept.length ? kept : here.slice(0, data.start.length)).map((row) => row.run));
    drawList();
    draw();
  }

  function chooseNetwork(name) {
    state.network = name;
    if (data.networks[name]) state.own = { ...data.networks[name] };
    bandwidth.value = state.own.bandwidth_mbit;
    rtt.value = state.own.rtt_ms;
    draw();
  }

  function ownNetwork() {
    state.network = link.value = "own";
    state.own = { bandwidth_mbit: bandwidth.valueAsNumber, rtt_ms: rtt.valueAsNumber };
    draw();
  }

  function shownRows() {
    return rowsHere().filter((row) => row.label.toLowerCase().includes(state.filter));
  }

  function drawList() {
    const boxes = shownRows().map((row) => checkbox(row.label, state.rows.has(row.run), (chosen) => {
      state.rows[chosen ? "add" : "delete"](row.run);
      draw();
    }, { value: row.run }));
    fill(list, boxes.length ? boxes : [element("p", {}, "No row’s name has this in it.")]);
  }

  function selectRows(chosen) {
    for (const row of shownRows()) state.rows[chosen ? "add" : "delete"](row.run);
    drawList();
    draw();
  }

  function draw() {
    const rows = chosenRows();
    if (!rows.some((row) => row.run === state.reference)) state.reference = rows.length ? rows[0].run : "";
    options(reference, rows.map((row) => [row.run, row.label]), state.reference);
    const made = lines();
    longest = Math.max(1e-9, ...made.map((line) => (line.time ? line.time.seconds : 0)));
    compared.show(made);
    const fits = made.some((line) => line.program === "as_published" && line.time);
    slower.textContent = fits ? data.slower_days[state.setting] || "" : "";
    const valid = network();
    for (const input of [bandwidth, rtt]) input.setAttribute("aria-invalid", String(!valid));
    if (!valid) told.textContent = "Give a bandwidth above 0 and a round-trip time of 0 or more: without them there is no latency.";
    else if (!made.length) told.textContent = "Choose at least one row and one program.";
    else told.textContent = `${rows.length} row${rows.length === 1 ? "" : "s"} of ${data.settings[state.setting]}, on ` +
      `${valid.bandwidth_mbit} Mbit/s and ${valid.rtt_ms} ms.`;
  }

  function comparison() {
    options(setting, Object.entries(data.settings), state.setting);
    options(link, [
      ...Object.entries(data.networks).map(([name, one]) =>
        [name, `${name.toUpperCase()}: ${one.bandwidth_mbit} Mbit/s, ${one.rtt_ms} ms`]),
      ["own", "your own"],
    ], state.network);
    const programs = element("fieldset", {}, element("legend", {}, "Program"), data.programs.map((name) =>
      checkbox(NAMES[name] || name, true, (chosen) => {
        state.programs[chosen ? "add" : "delete"](name);
        draw();
      }, { value: name })));
    const further = checkbox("Show extrapolations too", false, (chosen) => {
      state.extrapolate = chosen;
      draw();
    }, { id: "explorer-extrapolate" });
    const buttons = element("div", { class: "buttons" },
      element("button", { type: "button", onclick: () => selectRows(true) }, "choose all shown"),
      element("button", { type: "button", onclick: () => selectRows(false) }, "clear all shown"));
    const error = data.composition_error;
    const composed = error === null ? "" : ` Compositions differ from complete passes by up to ${(100 * error).toFixed(1)} % of the bytes.`;
    const form = element("form", { onsubmit: (event) => event.preventDefault() },
      element("div", { class: "fields" },
        field("Model and context", setting), field("Network", link), field("Mbit/s", bandwidth), field("RTT, ms", rtt),
        field("Compared with", reference), programs, further),
      element("fieldset", {}, element("legend", {}, "Rows"), field("Filter by name", filter), buttons, list));
    return [form, told,
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows side by side" }, compared.table),
      element("p", { class: "where" }, "Perplexity against the SM+LN+G of the same model and context, trained alike, " +
        `${data.scale}. Latency is computing + bytes that cost time / bandwidth + rounds × RTT; costs include one set-up.` +
        composed), slower];
  }

  // The claims -------------------------------------------------------------------------------------------------------

  const wanted = { text: "", paper: "", verdicts: new Set(data.verdicts) };

  function verdict(text) {
    return element("span", { class: `verdict v-${text.replaceAll(" ", "-")}` }, text);
  }

  function claimCells(claim) {
    const target = document.getElementById(`claim-${claim.id}`);
    return [target ? element("a", { href: `#claim-${claim.id}` }, claim.claim) : claim.claim, aside(claim.where)];
  }

  const claims = sortedTable([
    { title: "claim", value: (claim) => claim.claim, cells: claimCells },
    { title: "paper", value: (claim) => claim.paper, cells: (claim) => [element("code", {}, claim.paper.replaceAll("_", "_\u200b"))] },
    { title: "published", value: null, cells: (claim) => [figure(claim.published, "published", claim.where, claim.printed)] },
    { title: "found here", value: null,
      cells: (claim) => [claim.measured ? figure(claim.measured, claim.origin, claim.evidence, claim.file) : gap("not measured yet")] },
    { title: "verdict", value: (claim) => data.verdicts.indexOf(claim.verdict), cells: (claim) => [verdict(claim.verdict)] },
    { title: "rule and evidence", value: null, cells: (claim) => [aside(`${claim.rule}. ${claim.evidence}.`)] },
  ], "The claims that pass the filter");
  const counted = element("p", { class: "told", role: "status" });

  function shownClaims() {
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    return data.claims.filter((claim) => {
      const text = [claim.id, claim.claim, claim.where, claim.published, claim.measured, claim.rule].join(" ").toLowerCase();
      return (!wanted.paper || claim.paper === wanted.paper) && wanted.verdicts.has(claim.verdict) &&
        words.every((word) => text.includes(word));
    });
  }

  function drawClaims() {
    const shown = shownClaims();
    claims.show(shown);
    counted.textContent = shown.length ? `${shown.length} of ${data.claims.length} claims` : "No claim passes this filter.";
  }

  function claimsPart() {
    const papers = [...new Set(data.claims.map((claim) => claim.paper))];
    const paper = element("select", { id: "claims-paper", onchange: () => {
      wanted.paper = paper.value;
      drawClaims();
    } });
    options(paper, [["", "all papers"], ...papers.map((name) => [name, name])], "");
    const text = element("input", { id: "claims-text", type: "search", placeholder: "for example LayerNorm",
      oninput: () => {
        wanted.text = text.value;
        drawClaims();
      } });
    const boxes = data.verdicts.map((name) => {
      const count = data.claims.filter((claim) => claim.verdict === name).length;
      return checkbox(`${name} (${count})`, true, (chosen) => {
        wanted.verdicts[chosen ? "add" : "delete"](name);
        drawClaims();
      }, { value: name });
    });
    return [
      element("h3", { id: "explorer-claims" }, "The claims, sorted and filtered"),
      element("form", { onsubmit: (event) => event.preventDefault() },
        element("div", { class: "fields" }, field("Paper", paper), field("With these words", text),
          element("fieldset", {}, element("legend", {}, "Verdict"), boxes))),
      counted,
      element("div", { class: "scroll claim-list", tabindex: "0", role: "region", "aria-label": "Claims" }, claims.table),
    ];
  }

  place.append(element("div", { class: "explorer-live" }, comparison(), claimsPart()));
  place.classList.add("live");
  chooseNetwork(state.network);
  choose(state.setting);
  drawClaims();

  // For the console: the data, the arithmetic, and what stands in the two tables now, in their order.
  window.explorer = Object.freeze({ data, latency, rows: () => compared.sorted(), claims: () => claims.sorted() });
})();
