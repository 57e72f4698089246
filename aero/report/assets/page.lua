-- The document for print: HTML shown by code cells becomes native blocks, boxes become calls of page.typ's functions.
local boxes = { figure = "figure-box", table = "table-box", caption = "caption", sources = "sources" }

local function call(name, content)
  local out = pandoc.Blocks({ pandoc.RawBlock("typst", "#" .. name .. "[") })
  out:extend(content)
  out:insert(pandoc.RawBlock("typst", "]"))
  return out
end

local printed = {
  Div = function(div)
    for _, class in ipairs(div.classes) do
      if boxes[class] then return call(boxes[class], div.content) end
    end
    return div.content
  end,
  LineBreak = function() return pandoc.Str(" · ") end,
  -- Figures only: render.py writes them beside the document.
  Image = function(image)
    if not image.src:match("^figure%d+%.svg$") then return {} end
  end,
  -- A long notation breaks after its plus signs.
  Str = function(str) return pandoc.Str((str.text:gsub("%+", "+\u{200B}"))) end,
  -- Columns get widths by their longest cells, within bounds.
  Table = function(table)
    local longest, total = {}, 0
    local function measure(row)
      for i, cell in ipairs(row.cells) do
        local text = pandoc.utils.stringify(cell.contents)
        longest[i] = math.max(longest[i] or 11, math.min(utf8.len(text) or 0, 60))
        for word in text:gmatch("[%w]+") do longest[i] = math.max(longest[i], 1.4 * #word) end
      end
    end
    for _, row in ipairs(table.head.rows) do measure(row) end
    for _, body in ipairs(table.bodies) do
      for _, row in ipairs(body.body) do measure(row) end
    end
    for _, letters in ipairs(longest) do total = total + letters end
    for i, letters in ipairs(longest) do longest[i] = math.max(letters, total / 9) end
    total = 0
    for _, letters in ipairs(longest) do total = total + letters end
    for i, letters in ipairs(longest) do table.colspecs[i] = { pandoc.AlignLeft, letters / total } end
    return table
  end,
}

function RawBlock(raw)
  if raw.format ~= "html" then return end
  local html = raw.text:gsub("<details class=\"sources\"><summary>.-</summary>", "<div class=\"sources\">")
  html = html:gsub("</details>", "</div>"):gsub("<p class=\"caption\">(.-)</p>", "<div class=\"caption\"><p>%1</p></div>")
  return pandoc.Div(pandoc.read(html, "html").blocks):walk(printed).content
end

-- Links inside the repository or the page lead nowhere on paper.
function Link(link)
  if not link.target:match("^https?:") then return link.content end
end
