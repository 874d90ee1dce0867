{{/*
How the chart's values become the daemon's command line, environment and files. Nothing else in the chart knows the
daemon's options. All of these take a pool: {"key", "name", "values", "root"}.
*/}}

{{- define "nexofork.poolName" -}}
{{- default .key .values.pool -}}
{{- end }}

{{/* Where NATS is and who we are: what the daemon and the commands have in common. */}}
{{- define "nexofork.targetArgs" -}}
- --nats={{ .values.nats.url }}
- --pool={{ include "nexofork.poolName" . }}
{{- if .values.nats.existingSecret }}
- --{{ .values.nats.kind }}=/run/secrets/nexofork/nats/{{ .values.nats.secretKey }}
{{- end }}
{{- if .values.nats.caSecret }}
- --nats-ca=/run/secrets/nexofork/nats-ca/{{ .values.nats.caKey }}
{{- end }}
{{- end }}

{{- define "nexofork.daemonArgs" -}}
{{ include "nexofork.targetArgs" . }}
- --slots={{ int .values.slots }}
{{- with .values.leaseSeconds }}
- --lease-s={{ . }}
{{- end }}
- --drain-s={{ .values.drainSeconds }}
- --leader-wait-s={{ .values.leaderWaitSeconds }}
- --sandbox={{ .values.sandbox }}
{{- if .root.Values.health.enabled }}
- --health-port={{ int .root.Values.health.port }}
- --health-host=*
{{- end }}
{{- with .values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nexofork.daemonEnv" -}}
{{- range .values.extraEnv }}
{{- if and (has .name (list "ANTHROPIC_API_KEY" "ANTHROPIC_AUTH_TOKEN")) (hasKey . "value") }}
{{- fail (printf "extraEnv: %s is given as text. Put the key into a secret and name it in provider.existingSecret." .name) }}
{{- end }}
{{- end -}}
- name: ANTHROPIC_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .values.provider.existingSecret }}
      key: {{ .values.provider.secretKey }}
{{- with .values.provider.baseUrl }}
- name: ANTHROPIC_BASE_URL
  value: {{ . | quote }}
{{- end }}
{{- if .root.Values.prices }}
- name: NEXOFORK_PRICES
  value: /etc/nexofork/prices.toml
{{- end }}
- name: HOME
  value: /var/lib/nexofork
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The files that those options name. Whoever includes these trims them: each of the two may be missing. */}}
{{- define "nexofork.targetMounts" -}}
{{- if .values.nats.existingSecret }}
- name: nats-credentials
  mountPath: /run/secrets/nexofork/nats
  readOnly: true
{{- end }}
{{- if .values.nats.caSecret }}
- name: nats-ca
  mountPath: /run/secrets/nexofork/nats-ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "nexofork.targetVolumes" -}}
{{- if .values.nats.existingSecret }}
- name: nats-credentials
  secret:
    secretName: {{ .values.nats.existingSecret }}
    defaultMode: 0440
    items:
      - key: {{ .values.nats.secretKey }}
        path: {{ .values.nats.secretKey }}
{{- end }}
{{- if .values.nats.caSecret }}
- name: nats-ca
  secret:
    secretName: {{ .values.nats.caSecret }}
    defaultMode: 0440
    items:
      - key: {{ .values.nats.caKey }}
        path: {{ .values.nats.caKey }}
{{- end }}
{{- end }}

{{/* Whether the daemon works: asked over HTTP, or else, once, whether NATS knows a daemon with this pod's name. */}}
{{- define "nexofork.probes" -}}
{{- $probes := .root.Values.probes -}}
{{- if .root.Values.health.enabled -}}
startupProbe:
  httpGet: {path: /readyz, port: health}
  {{- toYaml $probes.startup | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  {{- toYaml $probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  {{- toYaml $probes.liveness | nindent 2 }}
{{- else -}}
startupProbe:
  exec:
    command:
      - nexofork-present
      {{- include "nexofork.targetArgs" . | nindent 6 }}
  {{- toYaml $probes.startup | nindent 2 }}
{{- end }}
{{- end }}

{{/* How many pods are there at any time; none where they may all be away, and that is no fault. */}}
{{- define "nexofork.fewestPods" -}}
{{- $keda := .values.autoscaling.keda -}}
{{- $keda.enabled | ternary $keda.minReplicas .values.replicas | int -}}
{{- end }}

{{/* The time a stopped pod gets; more than the drain, which ends with a hand-over. */}}
{{- define "nexofork.graceSeconds" -}}
{{- $drain := ceil .values.drainSeconds | int -}}
{{- $given := int .values.terminationGracePeriodSeconds -}}
{{- if and $given (lt $given (add $drain 10 | int)) -}}
{{- fail (printf "pool %s: terminationGracePeriodSeconds is %d, and drainSeconds %d: give at least %d, or 0 to have it computed." .key $given $drain (add $drain 10 | int)) -}}
{{- end -}}
{{- default (add $drain 30 | int) $given -}}
{{- end }}
