{{/*
The head: Ray's GCS and dashboard, and the actors of the controller. It offers no CPUs, so that nothing else is put there.
*/}}
{{- define "nereus.headGroup" -}}
{{- $head := .Values.rayCluster.head -}}
rayStartParams: {{- toYaml (merge (deepCopy $head.rayStartParams) (dict "num-cpus" "0" "dashboard-host" "0.0.0.0")) | nindent 2 }}
template:
  metadata:
    labels: {{- toYaml (merge (include "nereus.podLabels" . | fromYaml) $head.podLabels) | nindent 6 }}
    {{- with $head.podAnnotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    serviceAccountName: {{ include "nereus.serviceAccountName" . }}
    # Only the autoscaler beside the head talks to Kubernetes; KubeRay gives this account the role for it.
    automountServiceAccountToken: {{ .Values.rayCluster.autoscaling.enabled }}
    securityContext: {{- toYaml .Values.podSecurityContext | nindent 6 }}
    {{- with include "nereus.pullSecrets" . }}{{ . | trim | nindent 4 }}{{ end }}
    {{- with include "nereus.scheduling" $head }}{{ . | trim | nindent 4 }}{{ end }}
    containers:
      - name: ray-head
        image: {{ include "nereus.image" . | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        env:
          {{- include "nereus.env" . | nindent 10 }}
          {{- if .Values.api.existingSecret }}
          - name: NEREUS_TOKEN_FILE
            value: {{ include "nereus.tokenFile" . }}
          {{- end }}
          {{- with $head.extraEnv }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        ports:
          - {name: gcs-server, containerPort: 6379}
          - {name: dashboard, containerPort: 8265}
          - {name: client, containerPort: 10001}
          - {name: metrics, containerPort: 8080}
          - {name: nereus-api, containerPort: {{ .Values.api.port }}}
        {{- include "nereus.probes" . | nindent 8 }}
        resources: {{- toYaml $head.resources | nindent 10 }}
        securityContext: {{- toYaml .Values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          {{- include "nereus.writable" . | nindent 10 }}
          - name: journals
            mountPath: {{ .Values.controller.folder }}
          {{- if .Values.api.existingSecret }}
          - name: tokens
            mountPath: {{ include "nereus.tokenFile" . | dir }}
            readOnly: true
          {{- end }}
          {{- with $head.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- include "nereus.writableVolumes" . | nindent 6 }}
      - name: journals
        {{- if .Values.persistence.enabled }}
        persistentVolumeClaim:
          claimName: {{ include "nereus.claimName" . }}
        {{- else }}
        emptyDir: {}
        {{- end }}
      {{- if .Values.api.existingSecret }}
      - name: tokens
        secret:
          secretName: {{ .Values.api.existingSecret }}
          defaultMode: 0440
          items:
            - {key: {{ .Values.api.tokensKey }}, path: {{ include "nereus.tokenFile" . | base }}}
      {{- end }}
      {{- with $head.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}
