#!/bin/sh
# vllm-router (pip install vllm-router) in front of hosts. It keeps a tree of the prompts sent to each host (cache_aware),
# and sends a prompt to the host with its longest prefix. It retries by status alone, so that it sends a 503 that a host
# means for good (x-should-retry: false) to other hosts, too; Envoy (envoy.yaml) doesn't.
#   ./vllm-router.sh http://infer-0.infer:8000 http://infer-1.infer:8000
exec vllm-router --host 0.0.0.0 --port "${PORT:-8080}" --worker-urls "$@" \
  --policy "${POLICY:-cache_aware}" --cache-threshold 0.3 --balance-abs-threshold 32 \
  --health-check-endpoint /health/ready --health-check-interval-secs 1 --health-check-timeout-secs 1 \
  --health-failure-threshold 1 --health-success-threshold 1 \
  --retry-max-retries 5 --retry-initial-backoff-ms 25 --retry-max-backoff-ms 250 \
  --cb-failure-threshold 3 --cb-timeout-duration-secs 2 --request-id-headers x-request-id
