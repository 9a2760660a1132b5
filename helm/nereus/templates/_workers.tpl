{{/*
A group of workers: nodes that offer devices. Before a pod ends, its preStop hook gives the controller notice that the node
leaves, and returns when the devices are free or the notice is over; the pod's grace is longer than the notice.
*/}}
{{- define "nereus.workerGroup" -}}
{{- $root := .root -}}
{{- $group := .group -}}
{{- if gt (int $group.minReplicas) (int $group.maxReplicas) -}}
{{- fail (printf "rayCluster.workerGroups: %s has minReplicas %d over maxReplicas %d" $group.name (int $group.minReplicas) (int $group.maxReplicas)) -}}
{{- end -}}
groupName: {{ $group.name }}
replicas: {{ default $group.minReplicas $group.replicas }}
minReplicas: {{ $group.minReplicas }}
maxReplicas: {{ $group.maxReplicas }}
rayStartParams: {{- include "nereus.workerStartParams" $group | nindent 2 }}
template:
  metadata:
    labels: {{- toYaml (merge (include "nereus.podLabels" $root | fromYaml) (default (dict) $group.podLabels)) | nindent 6 }}
    {{- with $group.podAnnotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    serviceAccountName: {{ include "nereus.serviceAccountName" $root }}
    automountServiceAccountToken: false
    securityContext: {{- toYaml (merge (deepCopy (default (dict) $group.podSecurityContext)) $root.Values.podSecurityContext) | nindent 6 }}
    {{- with $root.Values.leave }}
    {{- if .enabled }}
    terminationGracePeriodSeconds: {{ add .noticeSeconds .graceSeconds }}
    {{- end }}
    {{- end }}
    {{- with include "nereus.pullSecrets" $root }}{{ . | trim | nindent 4 }}{{ end }}
    {{- with include "nereus.scheduling" $group }}{{ . | trim | nindent 4 }}{{ end }}
    containers:
      - name: ray-worker
        image: {{ default (include "nereus.image" $root) $group.image | quote }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        env:
          {{- include "nereus.env" $root | nindent 10 }}
          {{- with $group.extraEnv }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        ports:
          - {name: metrics, containerPort: 8080}
        {{- with $root.Values.leave }}
        {{- if .enabled }}
        lifecycle:
          preStop:
            exec:
              command: {{- include "nereus.leaveCommand" $root | nindent 16 }}
        {{- end }}
        {{- end }}
        {{- include "nereus.probes" $root | nindent 8 }}
        resources: {{- include "nereus.workerResources" $group | nindent 10 }}
        securityContext: {{- toYaml $root.Values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          {{- include "nereus.writable" $root | nindent 10 }}
          {{- with $group.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- include "nereus.writableVolumes" $root | nindent 6 }}
      {{- with $group.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "nereus.leaveCommand" -}}
- python
- -m
- nereus
- leave
- --address
- {{ include "nereus.headHost" . }}:6379
- --notice
- {{ .Values.leave.noticeSeconds | quote }}
{{- end -}}
