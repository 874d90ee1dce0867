{{/*
The alerts of a release: those of the file, with the one about missing daemons once for every pool that always has pods. A
pool whose pods are all gone leaves nothing in Prometheus that could be asked, so it is asked for by name; and where pods may
all be away, that is no fault.
*/}}
{{- define "nexofork.alerts" -}}
{{- $pools := list -}}
{{- range (include "nexofork.pools" . | fromJson).pools -}}
{{- $pool := merge (dict "root" $) . -}}
{{- if include "nexofork.fewestPods" $pool | int -}}
{{- $pools = append $pools (include "nexofork.poolName" $pool) | uniq -}}
{{- end -}}
{{- end -}}
{{- $groups := list -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := .rules -}}
{{- if eq $rule.alert "NexoforkNoDaemons" -}}
{{- range $pools -}}
{{- $named := printf "nexofork_slots{namespace=%q,pool=%q}" $.Release.Namespace . -}}
{{- $rules = append $rules (mergeOverwrite (deepCopy $rule) (dict "expr" (replace "nexofork_slots" $named $rule.expr))) -}}
{{- end -}}
{{- else -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" .name "rules" $rules) -}}
{{- end -}}
{{- toYaml (dict "groups" $groups) -}}
{{- end }}
