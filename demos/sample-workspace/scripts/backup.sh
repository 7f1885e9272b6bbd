#!/bin/sh
# Write one archive of the forecasts and stations per night. Keeps the last thirty.
# TODO(lou): copy the archive to a second machine
set -eu
day=$(date +%Y-%m-%d)
tar -czf "backup/tidewatch-$day.tar.gz" data forecast
find backup -name 'tidewatch-*.tar.gz' | sort | head -n -30 | xargs -r rm --
