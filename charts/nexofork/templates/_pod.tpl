{{/* The pod of one pool's daemons. Takes a pool: {"key", "name", "values", "root"}. */}}
{{- define "nexofork.podSpec" -}}
{{- $v := .values -}}
serviceAccountName: {{ include "nexofork.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ include "nexofork.graceSeconds" . }}
{{- if not (kindIs "invalid" $v.hostUsers) }}
hostUsers: {{ $v.hostUsers }}
{{- end }}
{{- with $v.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- toYaml $v.podSecurityContext | nindent 2 }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if $v.topologySpreadConstraints }}
  {{- toYaml $v.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "nexofork.poolSelector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- with $v.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: daemon
    image: {{ include "nexofork.image" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    workingDir: /var/lib/nexofork
    args:
      {{- include "nexofork.daemonArgs" . | nindent 6 }}
    env:
      {{- include "nexofork.daemonEnv" . | nindent 6 }}
    {{- with $v.extraEnvFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if .root.Values.health.enabled }}
    ports:
      - name: health
        containerPort: {{ int .root.Values.health.port }}
        protocol: TCP
    {{- end }}
    {{- include "nexofork.probes" . | nindent 4 }}
    {{- with $v.lifecycle }}
    lifecycle:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- toYaml $v.securityContext | nindent 6 }}
    resources:
      {{- toYaml $v.resources | nindent 6 }}
    volumeMounts:
      - name: state
        mountPath: /var/lib/nexofork
      - name: tmp
        mountPath: /tmp
      {{- if .root.Values.prices }}
      - name: config
        mountPath: /etc/nexofork
        readOnly: true
      {{- end }}
      {{- with include "nexofork.targetMounts" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with $v.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- with $v.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "nexofork.stateVolume" . | nindent 2 }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $v.tmp.sizeLimit }}
  {{- if .root.Values.prices }}
  - name: config
    configMap:
      name: {{ include "nexofork.fullname" .root }}
  {{- end }}
  {{- with include "nexofork.targetVolumes" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $v.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "nexofork.stateVolume" -}}
{{- $state := .values.state -}}
- name: state
{{- if eq $state.kind "pvc" }}
  ephemeral:
    volumeClaimTemplate:
      metadata:
        labels:
          {{- include "nexofork.poolSelector" . | nindent 10 }}
      spec:
        accessModes:
          {{- toYaml $state.accessModes | nindent 10 }}
        {{- with $state.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ $state.size }}
{{- else }}
  emptyDir:
    sizeLimit: {{ $state.size }}
{{- end }}
{{- end }}
