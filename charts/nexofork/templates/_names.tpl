{{- define "nexofork.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" }}
{{- end }}

{{- define "nexofork.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" }}
{{- else if contains (include "nexofork.name" .) .Release.Name }}
{{- .Release.Name | trunc 30 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "nexofork.name" .) | trunc 30 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "nexofork.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "nexofork.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "nexofork.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nexofork.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nexofork.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "nexofork.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nexofork.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{/* Labels that select the daemons of one pool. Takes what `nexofork.pools` lists. */}}
{{- define "nexofork.poolSelector" -}}
{{ include "nexofork.selectorLabels" .root }}
app.kubernetes.io/component: daemon
nexofork.dev/pool: {{ .key }}
{{- end }}

{{/*
Every pool with the defaults merged under it, as JSON: {"pools": [{"key", "name", "values"}]}. Templates add `root`.
The keys come in the order of the alphabet, so that a rendering is reproducible.
*/}}
{{- define "nexofork.pools" -}}
{{- $root := . -}}
{{- $given := .Values.pools | default (dict "fork" dict) -}}
{{- $defaults := omit .Values "pools" "global" -}}
{{- $list := list -}}
{{- range $key := keys $given | sortAlpha -}}
{{- $values := mergeOverwrite (deepCopy $defaults) (deepCopy (get $given $key | default dict)) -}}
{{- $list = append $list (dict "key" $key "name" (printf "%s-%s" (include "nexofork.fullname" $root) $key) "values" $values) -}}
{{- end -}}
{{- toJson (dict "pools" $list) -}}
{{- end }}
