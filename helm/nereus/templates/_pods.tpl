{{/* What the pods of head and workers share. */}}

{{- define "nereus.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "nereus.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The root file system is read-only: Ray writes its sessions to /tmp, caches go below the home. */}}
{{- define "nereus.writable" -}}
- name: tmp
  mountPath: /tmp
- name: home
  mountPath: /home/nereus
{{- end -}}

{{- define "nereus.writableVolumes" -}}
- name: tmp
  emptyDir: {}
- name: home
  emptyDir: {}
{{- end -}}

{{- define "nereus.env" -}}
- name: HOME
  value: /home/nereus
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
{{- end -}}

{{/*
Ray's own health, of raylet and (on the head) GCS, by the endpoint that Ray has for it since 2.53. Nereus' /livez and /readyz are
not asked here: the controller starts only after the head is ready, so a head that waited for it would never be.
*/}}
{{- define "nereus.probes" -}}
{{- $action := dict "path" "/api/healthz" "port" 52365 -}}
{{- with .Values.probes -}}
startupProbe:
  httpGet: {{- toYaml $action | nindent 4 }}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ div (add .startupSeconds .periodSeconds -1) .periodSeconds }}
livenessProbe:
  httpGet: {{- toYaml $action | nindent 4 }}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ .failureThreshold }}
readinessProbe:
  httpGet: {{- toYaml $action | nindent 4 }}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: 1
{{- end }}
{{- end -}}

{{/* The resource that a worker's container asks of Kubernetes for its devices; empty for emulated ones. */}}
{{- define "nereus.deviceResource" -}}
{{- get (dict "nvidia" "nvidia.com/gpu" "amd" "amd.com/gpu" "cpu" "") .accelerator -}}
{{- end -}}

{{/* The resources of a worker's container, with its devices; requests and limits of a device must be equal. */}}
{{- define "nereus.workerResources" -}}
{{- $resources := deepCopy .resources -}}
{{- $device := include "nereus.deviceResource" . -}}
{{- if $device -}}
{{- range $bound := list "requests" "limits" -}}
{{- $_ := set $resources $bound (merge (dict $device (int $.devicesPerNode)) (get $resources $bound)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* What `ray start` is told of a worker's devices: Ray's GPU, or the custom resource of emulated ones. */}}
{{- define "nereus.workerStartParams" -}}
{{- $params := dict -}}
{{- if eq .accelerator "cpu" -}}
{{- $_ := set $params "resources" (printf "'{\"nereus_device\": %d}'" (int .devicesPerNode)) -}}
{{- else -}}
{{- $_ := set $params "num-gpus" (printf "%d" (int .devicesPerNode)) -}}
{{- end -}}
{{- toYaml (merge (default (dict) .rayStartParams) $params) -}}
{{- end -}}
