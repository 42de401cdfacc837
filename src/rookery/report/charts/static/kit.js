"use strict";
// Draws each chart of a page: an ECharts option as JSON, which names the shapes and texts below.

const SHAPES = {
  // The interval around a line, as one polygon. Dimensions: x, low, high.
  band(params, api) {
    if (params.dataIndexInside > 0) return null;
    const low = [], high = [];
    for (let i = 0; i < params.dataInsideLength; i++) {
      const x = api.value(0, i);
      low.push(api.coord([x, api.value(1, i)]));
      high.unshift(api.coord([x, api.value(2, i)]));
    }
    const style = {fill: api.visual("color"), opacity: 0.16};
    return {type: "polygon", shape: {points: [...low, ...high]}, style, silent: true};
  },

  // A point with its interval. Dimensions: x and y of the point, of the low and of the high end;
  // then whether the high end is only a lower bound, which an arrow shows.
  interval(params, api) {
    const [[x, y], [x1, y1], [x2, y2]] = [0, 2, 4].map((at) => api.coord([api.value(at), api.value(at + 1)]));
    const color = api.visual("color");
    const arrow = [[x2, y2 - 7], [x2 + 12, y2], [x2, y2 + 7]];
    return {
      type: "group",
      children: [
        {type: "line", shape: {x1, y1, x2, y2}, style: {stroke: color, lineWidth: 3}},
        {type: "circle", shape: {cx: x, cy: y, r: 5}, style: {fill: color}},
        ...(api.value(6) ? [{type: "polygon", shape: {points: arrow}, style: {fill: color}}] : []),
      ],
    };
  },

  // A part of a process's time. Dimensions: process, began, ended, activity; for a share of the
  // time also where it begins and ends in the lane, 0 to 1. Of spans within one pixel the first
  // is drawn, since a process has thousands.
  span(params, api) {
    const lane = api.value(0);
    const [left, middle] = api.coord([api.value(1), lane]);
    const right = api.coord([api.value(2), lane])[0];
    const [low, high] = [api.value(4) || 0, api.value(5) || 1];
    const drawn = params.context;
    if (low === 0 && high === 1) {
      if (Math.ceil(right) <= (drawn[lane] ?? -Infinity)) return null;
      drawn[lane] = Math.ceil(right);
    }
    const tall = 0.8 * api.size([0, 1])[1];
    const box = {x: left, y: middle + tall * (0.5 - high), width: right - left + 0.5, height: tall * (high - low)};
    const shape = echarts.graphic.clipRectByRect(box, params.coordSys);
    return shape && {type: "rect", shape, style: {fill: api.visual("color")}};
  },
};

const TEXTS = {
  // What a span is, when it began and how long it took; of a share of the time, how large it is.
  span: (option) => ({value: [process, began, ended, activity, low, high]}) => {
    const what = `${process}: ${option.visualMap.pieces[activity].label}`;
    return high === undefined
      ? `${what}, ${Number((1e3 * (ended - began)).toPrecision(3))} ms from ${began.toFixed(4)} s`
      : `${what} ${Math.round(100 * (high - low))} % from ${began.toFixed(2)} to ${ended.toFixed(2)} s`;
  },
};

for (const [name, shape] of Object.entries(SHAPES)) echarts.registerCustomSeries(name, shape);

const dark = matchMedia("(prefers-color-scheme: dark)");

// What all charts have in common; an option may say otherwise.
const AXES = {
  value: {type: "value", scale: true, nameLocation: "middle", axisLine: {onZero: false}, axisPointer: {label: {precision: 0}}},
  category: {inverse: true, axisLabel: {interval: 0, width: 110, overflow: "truncate"}},
};
const RULE = {silent: true, symbol: "none", lineStyle: {color: "#888", type: "dashed"}};
const TOOLS = {feature: {dataZoom: {}, restore: {}, saveAsImage: {}}};

function complete(option) {
  const axis = (given, nameGap) => ({nameGap, ...AXES[given.type ?? "value"], ...given});
  const text = TEXTS[option.tooltip?.formatter];
  const left = option.yAxis?.type === "category" ? 140 : 70;
  return {
    animation: false,
    backgroundColor: "transparent",
    ...option,
    grid: {left, right: 40, top: 40, bottom: 50, ...option.grid},
    legend: {type: "scroll", top: 0, left: 60, right: 110, show: false, ...option.legend},
    toolbox: {...TOOLS, show: option.xAxis.show !== false},
    tooltip: {confine: true, renderMode: "richText", ...option.tooltip, ...(text && {formatter: text(option)})},
    xAxis: axis(option.xAxis, 30),
    yAxis: axis(option.yAxis, 50),
    series: option.series.map((one) => ({clip: true, ...one, ...(one.markLine && {markLine: {...RULE, ...one.markLine}})})),
  };
}

function draw(box, option) {
  const chart = echarts.init(box, dark.matches ? "dark" : null, {renderer: option.renderer ?? "svg"});
  chart.setOption(complete(option));
  return chart;
}

for (const data of document.querySelectorAll("script[type='application/json']")) {
  const box = data.previousElementSibling;
  const option = JSON.parse(data.textContent);
  let chart = draw(box, option);
  dark.addEventListener("change", () => {
    chart.dispose();
    chart = draw(box, option);
  });
  new ResizeObserver(() => chart.resize()).observe(box);
}
