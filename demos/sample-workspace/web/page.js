// Fills the table of water levels from the forecast files.
// The page must work on an old phone, so there is no framework and no build step.
async function show(station) {
  const answer = await fetch(`forecast/${station}.json`);
  const forecast = await answer.json();
  // TODO(lou): say on the page when surge_used is false
  const row = document.getElementById("levels").insertRow();
  row.insertCell().textContent = forecast.station;
  row.insertCell().textContent = Math.max(...forecast.levels).toFixed(2);
}
["BREST", "ROSCOFF", "CONCARNEAU"].forEach(show);
